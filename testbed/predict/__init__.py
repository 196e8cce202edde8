"""What theory says a run should take."""
