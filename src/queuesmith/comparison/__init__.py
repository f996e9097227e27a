"""Which policy to run on a trace: every policy at every load beside FCFS, and the answer."""
