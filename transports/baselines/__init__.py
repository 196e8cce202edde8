"""Baseline libraries: stacks that others wrote, on the same links, to compare with."""
