"""A discrete-event simulation of flows: what exchanges of gradients take on any network, at any scale. Pure."""
