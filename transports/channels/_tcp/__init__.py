"""The machinery of `tcp` and `mptcp`: connections, streams, and the C program that runs whole schedules."""
