"""What is printed on a terminal: plan, machine, links, status, streams and the summary of a run."""
