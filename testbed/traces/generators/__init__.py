"""Graphs made from a table of layers, for any number of ranks. One file, one way to divide a training among ranks."""
