"""The switch axis: one file per way of forwarding."""
