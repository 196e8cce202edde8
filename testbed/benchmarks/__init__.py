"""Benchmarks: what is measured side by side in one run, and the targets it is held to."""
