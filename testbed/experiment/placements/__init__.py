"""The placement axis: which worker sits on which place of the topology. One file per placement."""
