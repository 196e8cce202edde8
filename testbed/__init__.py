"""The testbed: spec -> plan -> deploy -> calibrate -> run -> record -> report."""
