"""`torchrun -m transports.bench`: collectives timed on a real cluster, and the timing that `testbed bench` shares."""
