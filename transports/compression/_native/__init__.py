"""What of coding is written in C, and as Python sees it."""
