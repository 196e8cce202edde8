"""The laboratory: spec -> plan -> deploy -> calibrate -> run -> record -> report."""
