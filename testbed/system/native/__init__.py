"""C programs and libraries: built once for each state of their sources."""
