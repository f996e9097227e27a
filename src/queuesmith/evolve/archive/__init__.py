"""Everything that a run has tried, in one SQLite file."""
