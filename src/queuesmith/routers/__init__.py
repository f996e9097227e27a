"""Routers: which of several replicas a request is sent to; one plain Python file each.

`get_router` loads one by name or path; `router_names` lists the built-in ones. The contract is told
by `docs/reference/routers.md`; the language is that of policies.
"""

from queuesmith.routers.router import Router, get_router, router_names

__all__ = ["Router", "get_router", "router_names"]
