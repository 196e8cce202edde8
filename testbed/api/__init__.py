"""What `import testbed` offers: runs, sweeps, results and predictions as objects that show themselves in a notebook."""
