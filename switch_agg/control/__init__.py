"""The control service of an aggregator, and the client that speaks to it."""
