"""Fusion: one file per way of joining gradients into buckets."""
