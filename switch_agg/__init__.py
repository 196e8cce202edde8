"""The switch that adds: in-network aggregation. The lowest layer; its protocol arrives with the first data plane."""
