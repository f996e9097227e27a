"""Policies bred for a score: proposers, a sandbox, an archive, and gates that can say no."""
