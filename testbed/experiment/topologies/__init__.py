"""The topology axis: nodes and links as pure data. One file per topology."""
