"""What the user writes: the spec, its axes (a folder for each, a file for each value) and its sweeps. Pure data;
nothing here touches the kernel or torch."""
