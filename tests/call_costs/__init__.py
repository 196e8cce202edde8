"""What a small all-reduce costs beside its messages: objects, locks, calls and system calls."""
