"""What people read of records: the page of a run, its plots and traces; texts for a terminal and comparisons of runs in
folders of their own."""
