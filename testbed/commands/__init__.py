"""The commands of `testbed`, by subject: each parses its line, calls one function and prints; heavy imports happen
inside."""
