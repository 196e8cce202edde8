"""The channel axis: how the bytes get there. One file per transport."""
