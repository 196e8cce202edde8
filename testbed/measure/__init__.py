"""What is measured while a run goes on."""
