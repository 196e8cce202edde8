"""Hosts: how a worker's namespace or container is made, what processes it gets, and how all of it is removed."""
