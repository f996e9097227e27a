"""Policies inside real vLLM: the plug-in for its scheduler, and the command that starts a server.

`plugin` runs in vLLM's engine process and, with what it imports here, needs neither numba nor the
simulator. `serve` builds the command line.
"""
