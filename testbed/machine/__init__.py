"""This machine: what it lacks for an experiment, and how much of it an experiment asks for."""
