"""The host axis: what a worker runs in. One file per runtime."""
