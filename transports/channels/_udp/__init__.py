"""The machinery of `udp`: a reliable, paced protocol without I/O, and its driver."""
