"""Predictions: what theory says before anything is run."""
