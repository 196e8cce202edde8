"""The collective axis: who sends what to whom. One file per algorithm."""
