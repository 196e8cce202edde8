"""Traces of training: how long each layer of a model computes, and how many bytes of gradients it makes."""
