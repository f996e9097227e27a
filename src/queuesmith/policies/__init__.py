"""Scheduling policies: one plain Python file each, in `builtin`.

`get_policy` loads one by name, path or entry point; `policy_names` lists the built-in ones. What a
file may contain is told by `docs/reference/contract.md` and enforced by
`queuesmith.policies.syntax`.
"""

from queuesmith.policies.language import HOOKS
from queuesmith.policies.policy import (
    ENTRY_POINT_GROUP,
    Policy,
    get_policy,
    policy_names,
    split_policies,
)

__all__ = ["ENTRY_POINT_GROUP", "HOOKS", "Policy", "get_policy", "policy_names", "split_policies"]
