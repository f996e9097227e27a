"""Workload models: clients, sessions and their files, beside the models in the package."""
