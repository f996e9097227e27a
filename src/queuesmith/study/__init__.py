"""Where a ranking of policies holds and where it flips: designs, their runs, and what they say."""
