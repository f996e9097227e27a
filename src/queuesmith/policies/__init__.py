"""Scheduling policies: one plain Python file each, in `builtin`."""
