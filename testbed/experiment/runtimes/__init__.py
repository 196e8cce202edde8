"""The runtime axis: what a worker, a parameter server or an aggregator runs in. One file per runtime."""
