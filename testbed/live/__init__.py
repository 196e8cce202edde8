"""The live page: a run, or its record, drawn while it goes on. What is said of it (messages), how it is told from the
record's rows (narration), what a late comer is told (state), where nodes stand (layout); who serves it (server)."""
