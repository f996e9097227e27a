"""Gate G7: what `queuesmith ab` has measured in real vLLM."""

from collections.abc import Mapping
from typing import Any

from queuesmith.evolve.gates.gate import Gate, make_gate, not_run
from queuesmith.policies import Policy

#: Of every window in each arm.
MIN_REPEATS = 3
#: The first judged TTFT alone, with its changes beside the verdict.
SCHEMAS = ("queuesmith.ab/1", "queuesmith.ab/2")


def real(policy: Policy, document: Mapping[str, Any] | None) -> Gate:
    """G7: an A/B in real vLLM, as `queuesmith ab` has written it.

    It passes if at some load the policy is surely better, and at none is it worse, mixed or not
    known. Both arms' seconds per step must be there to be shown.
    """
    if document is None:
        return not_run("G7", "no A/B in real vLLM was given; `queuesmith ab` measures one")
    settings, loads = document.get("config", {}), document.get("loads", [])
    if document.get("schema") not in SCHEMAS or not loads:
        return make_gate("G7", False, "what was given is no result of `queuesmith ab`")
    saw = {
        "where": settings.get("where"),
        "repeats": settings.get("repeats"),
        "sha256": settings.get("sha256"),
        "loads": [
            {
                **{
                    name: row.get(name)
                    for name in (
                        "load", "num_windows", "verdict", "reason", "machine_ratio",
                    )
                },
                **_changes(row),
                "ms_per_step": {
                    arm: values.get("ms_per_step") for arm, values in row.get("arms", {}).items()
                },
            }
            for row in loads
        ],
    }  # fmt: skip
    verdicts = [row.get("verdict") for row in loads]
    told = ", ".join(f"{row.get('load')}: {row.get('verdict')}" for row in loads)
    if settings.get("policy_sha256") != policy.sha256:
        return make_gate("G7", False, "the A/B was of another policy", **saw)
    if "virtual clock" in str(settings.get("where", "")):
        return make_gate("G7", False, "the A/B was on a virtual clock, not in real vLLM", **saw)
    if not isinstance(settings.get("repeats"), int) or settings["repeats"] < MIN_REPEATS:
        return make_gate("G7", False, f"it takes at least {MIN_REPEATS} repeats", **saw)
    if document.get("failures"):
        return make_gate("G7", False, f"{len(document['failures'])} requests failed", **saw)
    if any(row.get("tail_violated") for row in loads):
        return make_gate("G7", False, f"its tail is longer in real vLLM ({told})", **saw)
    if any(
        None in row["ms_per_step"].values() or len(row["ms_per_step"]) < 2 for row in saw["loads"]
    ):
        return make_gate("G7", False, "nobody knows how long the steps of both arms took", **saw)
    passed = "better" in verdicts and all(word in ("better", "same") for word in verdicts)
    return make_gate("G7", passed, f"in real vLLM {told}", **saw)


def _changes(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes of mean and p99 TTFT of a load, as either schema has them."""
    changes = row.get("changes")
    if changes is None:
        names = ("mean_change", "mean_change_low", "mean_change_high", "p99_change")
        return {name: row.get(name) for name in names}
    mean, p99 = changes.get("ttft_mean", {}), changes.get("ttft_p99", {})
    return {
        "mean_change": mean.get("change"),
        "mean_change_low": mean.get("low"),
        "mean_change_high": mean.get("high"),
        "p99_change": p99.get("change"),
    }
