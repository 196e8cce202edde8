"""The record of a run: its tables, the summary for scripts, the writer and the reader, and the status of a run that
goes on."""
