"""The storage axis: how workers read their training data over the network. One file per way to read."""
