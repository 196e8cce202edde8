"""An aggregator for the unmodified clients of p4app-switchML (github.com/p4lang/p4app-switchML): its UDP datagrams, the
arithmetic and the slots of its P4 program, and the session service of its controller. docs/switchml.md says how to use
it; it shares no address and no job with the protocol of this package."""
