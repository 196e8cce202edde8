"""Many records: an index over them, and whether their differences are more than noise."""
