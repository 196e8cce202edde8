"""Benchmarks: what is measured side by side in one run, and the bars it is held to."""
