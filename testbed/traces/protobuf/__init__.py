"""Messages of trace formats that others define: a schema of our own with their field numbers, and its code."""
