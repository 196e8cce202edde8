"""The aggregating switch: in-network aggregation after SwitchML (Sapio et al., NSDI 2021). The lowest layer; it works
alone.

The protocol is :mod:`switch_agg.wire` and two state machines without I/O, :mod:`switch_agg.aggregator` and
:mod:`switch_agg.worker`, which one driver (sockets, a clock) and one simulator (faults, virtual time) run alike.
:mod:`switch_agg.switchml` serves p4app-switchML's own clients instead.
"""
