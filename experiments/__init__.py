"""Specs that ship with the testbed: YAML only, no machinery."""
