"""The page about a run, and its sentences."""
