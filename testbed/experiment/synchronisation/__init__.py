"""Synchronisation: one file per way of keeping workers together."""
