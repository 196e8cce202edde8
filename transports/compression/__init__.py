"""The compression axis: what of a gradient is sent, and as which bytes."""
