"""The live page: a run, or its record, drawn while it goes on. What is said of it (messages), how
that follows from the record's rows (translation), what a late comer gets (state), where nodes stand (layout); who
serves it (server)."""
