"""What policies did to requests, and whether that is good: runs, statistics, goals and guards.

`evaluate` runs policies, `statistics` says what is measured, `goals` what is wanted and what must
not get worse, and `judge` decides. Every verb judges by this.
"""
