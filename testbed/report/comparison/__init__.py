"""Runs of a sweep side by side: their points, the axes they differ in, the answer in a sentence, plots and page."""
