"""The switch that adds, as part of a run: where it is, its process, what it counted."""
