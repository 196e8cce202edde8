"""Formats of trace files. One file, one format."""
