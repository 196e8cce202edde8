"""Whether each link is what it says: delays, rates, queues and losses measured before a run, the tolerances they are
held to, and a cache of the slow measurements."""
