"""How gradients travel: collectives, channels, the executor that joins them, and a torch backend over both."""
