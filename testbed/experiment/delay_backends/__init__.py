"""Delay backends: one file per way of giving a link delay, jitter and loss."""
