"""The control plane: gRPC over Unix sockets, which cross network namespaces; the emulated links never carry it."""
