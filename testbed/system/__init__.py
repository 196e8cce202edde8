"""The kernel's interfaces, without knowledge of experiments: processes, netlink, sysctls, the state of a run on disk,
and the C programs."""
