"""A run as Prometheus sees it: the page it is scraped from, the server that scrapes, the rules it evaluates."""
