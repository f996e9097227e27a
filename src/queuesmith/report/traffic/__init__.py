"""Pages and pictures of traffic: a workload described, and a run over time."""
