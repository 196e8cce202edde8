"""Schedules played over channels: the communicator, the executor, exchanges of compressed gradients, servers."""
