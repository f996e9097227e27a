"""The same engine in plain Python, slow and short, and how the two are compared."""
