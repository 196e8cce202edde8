"""What is measured while a run goes on, as plain observations."""
