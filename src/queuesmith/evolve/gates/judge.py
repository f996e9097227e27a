"""A policy through the gates in order, to the first that it does not pass.

What is judged may come from a run (its best, or any file) or from a person; the traffic is that of
a run or of a configuration. Held-out windows are opened last, by one policy, once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from queuesmith._version import __version__
from queuesmith.errors import CandidateError, ConfigError, did_you_mean
from queuesmith.evolve.candidate import text_sha256
from queuesmith.evolve.gates import control, gates, real
from queuesmith.evolve.gates.case import Case
from queuesmith.evolve.gates.gate import GATES, Gate, make_gate, not_run
from queuesmith.evolve.gates.ledger import HeldOut, Ledger
from queuesmith.evolve.gates.measurements import Bench
from queuesmith.evolve.sandbox.allow_list import check_form
from queuesmith.evolve.scoring.traffic import kind_of
from queuesmith.policies import Policy, get_policy
from queuesmith.policies.policy import load_text

__all__ = ["CLOSED", "Case", "Judgement", "judge"]

#: The last gate before held-out windows are opened.
CLOSED = "G5"


@dataclass(frozen=True)
class Judgement:
    """What came of judging one policy."""

    name: str
    text: str
    case: Case
    gates: tuple[Gate, ...]  # those that were tried, in order
    #: How what the seeds found ranked, if the best of them was to be judged.
    competition: Sequence[Mapping[str, Any]] = ()
    ledger: Sequence[Mapping[str, Any]] = ()  # the entries about these held-out windows
    spent: bool = False  # whether the held-out windows had been opened before
    through: str = CLOSED  # the last gate that was asked for
    #: Whom it admits first in typical queues, once the held-out windows were opened.
    does: Sequence[Mapping[str, Any]] = ()

    @property
    def passed(self) -> bool:
        """Whether every gate that was asked for has been passed, on windows nobody had seen."""
        return len(self.gates) == int(self.through[1]) + 1 and all(
            gate.passed for gate in self.gates
        )

    @property
    def verdict(self) -> str:
        """Say in one line how it ended."""
        mark = " (on SPENT held-out windows, which proves nothing new)" if self.spent else ""
        for gate in self.gates:
            if gate.passed is None:
                before = f"G{int(gate.gate[1]) - 1}"
                what = f"{gate.gate} {gate.name} was not run: {gate.sentence}"
                return f"stopped after {before}: {what}{mark}"
            if not gate.passed:
                return f"fell short at {gate.gate} {gate.name}: {gate.sentence}{mark}"
        left = "" if self.through >= "G6" else "; the held-out windows were not opened"
        if self.through == "G6":
            left = "; not measured in real vLLM (G7)"
        return f"passed G0 to {self.through}{left}{mark}"

    @property
    def opened(self) -> bool:
        """Whether held-out windows were looked at."""
        return any(gate.gate == "G6" and gate.saw.get("score") for gate in self.gates)

    def document(self) -> dict[str, Any]:
        """Return all of it as JSON can hold it, but for numbers that are not finite."""
        config = self.case.config
        return {
            "schema": "queuesmith.judgement/1",
            "version": __version__,
            "verdict": self.verdict,
            "passed": self.passed,
            "through": self.through,
            "spent": self.spent,
            "policy": {"name": self.name, "sha256": text_sha256(self.text), "text": self.text},
            "config": {
                "name": config.name,
                "sha256": config.sha256,
                "text": config.text,
                "seeds": list(config.seeds),
                "loads": [asdict(load) for load in config.loads],
                "engine": config.engine.name,
                "second_engine": config.second_engine.name if config.second_engine else None,
                "output_length": config.output_length.describe(),
                "evaluations": {
                    str(one.seed): {
                        "search": one.search_evaluations,
                        "control": one.control_evaluations,
                    }
                    for one in self.case.pairs
                },
                "used": dict(self.case.spent),
            },
            "windows": {
                "sha256": self.case.window_set.sha256,
                "held_out_sha256": HeldOut.of(self.case.window_set).sha256,
                "sources": [
                    {
                        "file": source.file,
                        "sha256": source.sha256,
                        "kind": kind_of(source.file),
                        "parts": {
                            part: [asdict(window) for window in cut]
                            for part, cut in source.parts.items()
                        },
                    }
                    for source in self.case.window_set.sources
                ],
            },
            "lineage": list(self.case.lineage.get(text_sha256(self.text), ())),
            "competition": list(self.competition),
            "gates": [{**asdict(gate), "outcome": gate.outcome} for gate in self.gates],
            "ledger": list(self.ledger),
        }


def judge(
    case: Case,
    candidate: tuple[str, str] | None,
    *,
    ledger: Ledger,
    through: str = CLOSED,
    go_on: bool = False,
    spent: bool = False,
    classics: Sequence[str] = gates.CLASSICS,
    measured: Callable[[Policy], Mapping[str, Any] | None] = lambda _: None,
    workers: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
    show: Callable[[Gate], None] = lambda _: None,
) -> Judgement:
    """Lead a policy through the gates.

    Parameters
    ----------
    candidate : (str, str), optional
        Name and text. When left out, what the seeds of the run found competes on validation
        windows, and the best is judged.
    through : str
        The last gate; held-out windows are opened for G6 and G7 only.
    go_on : bool
        Try later gates after one that was not passed; the held-out windows stay closed.
    spent : bool
        Look at held-out windows again that were opened before.
    classics : sequence of str
        What it is held against from G3 on, besides those of the configuration.
    measured : callable, optional
        Returns the result of an A/B in real vLLM, or None.

    Raises
    ------
    Spent
        Before any gate, if held-out windows are asked for that were opened before.
    QueuesmithError
        If the traffic is not there, or there is nothing to judge.
    """
    if through not in GATES:
        raise ConfigError(
            f"there is no gate {through!r}.{did_you_mean(through, GATES)} Known: {', '.join(GATES)}"
        )
    held_out = HeldOut.of(case.window_set)
    if through > CLOSED and not spent:
        ledger.refuse(held_out)
    bench = Bench(case.config, case.window_set, workers=workers, progress=progress)
    others = _classics([*case.config.search.classics, *classics])
    competition: list[dict[str, Any]] = []
    if candidate is None:
        found = {
            pair.seed: _trusted(f"best_seed_{pair.seed}", pair.search)
            for pair in case.pairs
            if pair.search
        }
        if not found:
            raise ConfigError("there is nothing to judge: name a policy file with --candidate")
        competition = control.compete(found, bench)
        winner = found[competition[0]["seed"]]
        candidate = winner.name, winner.source
    name, text = candidate

    tried: list[Gate] = []
    was_spent = False
    for number in GATES:
        if number > through:
            break
        gate: Gate
        failed = [one.gate for one in tried if not one.passed]
        if number == "G0":
            gate = gates.form(text)
        elif "G0" in failed or ("G1" in failed and tried[1].saw.get("waits") is None):
            break  # nobody runs what may not be run, or does not end
        elif number == "G6" and failed:
            gate = not_run("G6", f"the held-out windows stay closed after {failed[0]}")
        elif number == "G6":
            gate, was_spent = _open(case, bench, _load(name, text), others, ledger, spent)
        else:
            try:
                gate = _try(number, _load(name, text), case, bench, others, measured)
            except CandidateError as error:
                gate = make_gate(number, False, str(error))
        tried.append(gate)
        show(gate)
        if not gate.passed and not go_on:
            break
    seen = any(gate.gate == "G6" and gate.passed is not None for gate in tried)
    about = ledger.about(held_out) if seen else []
    does = bench.situations(_load(name, text)) if seen else []
    return Judgement(name, text, case, tuple(tried), competition, about, was_spent, through, does)


def _try(
    number: str,
    policy: Policy,
    case: Case,
    bench: Bench,
    classics: Sequence[Policy],
    measured: Callable[[Policy], Mapping[str, Any] | None],
) -> Gate:
    match number:
        case "G1":
            return gates.behaviour(policy, bench)
        case "G2":
            return gates.tuning(policy, bench)
        case "G3":
            return gates.validation(policy, bench, classics)
        case "G4":
            return control.control(policy, bench, case.pairs, _trusted)
        case "G5":
            return gates.physics(policy, bench, classics)
    return real.real(policy, measured(policy))


def _open(
    case: Case,
    bench: Bench,
    policy: Policy,
    classics: Sequence[Policy],
    ledger: Ledger,
    spent: bool,
) -> tuple[Gate, bool]:
    """Open the held-out windows: in the ledger first, then for real, then in the ledger again."""
    bench.load("held_out")  # a file that is missing is found out before anything is spent
    config = case.config
    opening = ledger.open(
        HeldOut.of(case.window_set),
        {
            "policy": policy.name,
            "policy_sha256": policy.sha256,
            "engine": config.engine.name,
            "loads": [load.name for load in config.loads],
            "config_sha256": config.sha256,
            "version": __version__,
        },
        spent=spent,
    )
    bench.unlock(opening)
    try:
        gate = gates.held_out(policy, bench, classics)
    except CandidateError as error:
        gate = make_gate("G6", False, str(error))
    ledger.close(
        opening,
        {
            "windows_sha256": opening.entry["windows_sha256"],
            "policy_sha256": policy.sha256,
            "passed": gate.passed,
            "sentence": gate.sentence,
            "score": gate.saw["score"]["value"] if gate.saw else None,
        },
    )
    return gate, opening.spent


def _classics(specs: Sequence[str]) -> list[Policy]:
    """Load each text once; FCFS is always there."""
    found = {policy.sha256: policy for policy in map(get_policy, specs)}
    found.pop(get_policy("fcfs").sha256, None)
    return list(found.values())


def _load(name: str, text: str) -> Policy:
    return load_text(name, text, Path(f"{name}.py"))


def _trusted(name: str, text: str) -> Policy:
    """Load what a run has found, whose form is checked again: an archive is a file like any."""
    check_form(text)
    return _load(name, text)
