"""What adds: one file for each data plane, behind one interface and one conformance suite."""
