"""The plan made real and taken down again: Mininet nodes, links, daemons, aggregators and background traffic, each read
back from the kernel."""
