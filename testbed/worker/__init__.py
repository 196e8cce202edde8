"""What runs inside a host: the agent of a worker, its trainer, the parameter server, the aggregator and its tenants."""
