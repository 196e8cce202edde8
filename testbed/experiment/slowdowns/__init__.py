"""The slowdown axis: how much longer a straggler computes. One file per kind."""
