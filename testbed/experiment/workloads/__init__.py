"""The workload axis: what the workers do. One file per kind."""
