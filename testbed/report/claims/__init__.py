"""Claims for people and scripts: a table in the terminal, a page, Markdown, LaTeX, JSON."""
