"""Everything that is decided before anything is made: addresses, paths, placement, configuration of each link, buckets
and bytes of each hop. Pure functions of the experiment."""
