"""Records of runs, and what people read of them."""
