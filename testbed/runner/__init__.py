"""One run from plan to record: the session that starts processes and ends them, the coordinator of the workers, the
recorder, and many runs of a sweep."""
