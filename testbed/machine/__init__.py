"""This machine: what is missing for an experiment, and how much of it an experiment needs."""
