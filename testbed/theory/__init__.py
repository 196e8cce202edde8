"""What models say before anything is run. Pure functions."""
