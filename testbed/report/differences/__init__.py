"""What `testbed compare` finds, as a page, as Markdown and as pictures."""
