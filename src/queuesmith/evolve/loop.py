"""The loop: propose, drop duplicates, score, select; search and control in step.

A generation is a function of the configuration, the seed, its number and the survivors before it:
every generator is made anew from those numbers, and whatever is known goes through the archive.
So a run that was stopped anywhere goes on to the very end it would have had.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from queuesmith.errors import PolicyError
from queuesmith.evolve.archive.archive import Archive
from queuesmith.evolve.archive.schema import Member, Verdict
from queuesmith.evolve.candidate import Candidate, Generation, Proposal, Proposer
from queuesmith.evolve.config import CURRENCIES, EvolveConfig, Share
from queuesmith.evolve.llm.prompt import brief
from queuesmith.evolve.sandbox.evaluator import Evaluated, Evaluator
from queuesmith.evolve.scoring.cells import Cell, CellResult
from queuesmith.evolve.scoring.scale import Limit, Scale
from queuesmith.evolve.selection import (
    count_nodes,
    judge,
    lexicase,
    limit,
    schedule,
    split,
    survivors,
)

#: Search and control: the same windows, the same budget, the same selection.
TRACKS = ("search", "control")
#: How often a proposer that costs nothing is asked again for what were duplicates.
ROUNDS = 3
#: What a generator is for; part of its entropy.
_BREED, _CHOOSE = 1, 2


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    #: seed, generation, generations: the generation is counted from 0.
    seed: int
    generation: int
    generations: int
    #: best, control: best score of the search and of the control in their last generation, no guard
    #: broken; None while there is none.
    best: float | None
    control: float | None
    #: evaluations, planned: of all seeds and both tracks.
    evaluations: int
    planned: int
    wall_seconds: float  # since the run began, while a process was at it
    left: Mapping[str, float]  # of each budget that has a cap


class Loop:
    """One run; `run` goes from wherever the archive is to the end.

    Parameters
    ----------
    check_form : callable
        Raises `PolicyError` for a text that must not be compiled.
    behaviour : callable
        Proposal to a hash that is equal for texts that decide alike; empty if it cannot tell.
    """

    def __init__(
        self,
        config: EvolveConfig,
        archive: Archive,
        scale: Scale,
        evaluator: Evaluator,
        *,
        proposers: Sequence[tuple[Share, Proposer]],
        control: Proposer,
        check_form: Callable[[str], None],
        behaviour: Callable[[Proposal], str],
        progress: Callable[[Progress], None] = lambda _: None,
    ) -> None:
        self.config, self.archive, self.scale = config, archive, scale
        self.evaluator = evaluator
        self.proposers = {"search": list(proposers), "control": [(Share(control.name), control)]}
        self.check_form, self.behaviour, self.progress = check_form, behaviour, progress
        self._clock = time.monotonic()
        self._num_evaluated = archive.num_evaluated()

    def run(self) -> str:
        """Go on until the generations or a budget are used up; return which it was."""
        for generation in range(self.config.search.generations):
            if reason := self._used_up(generation):
                return reason
            for seed in self.config.seeds:
                count = self._allowance(seed, generation)
                self._generation(Generation(seed, "search", generation), count)
                owed = self.archive.num_evaluated(seed, "search", generation + 1)
                had = self.archive.num_evaluated(seed, "control", generation)
                self._generation(Generation(seed, "control", generation), owed - had)
        return "all generations are done"

    # Budgets

    def _used_up(self, generation: int) -> str:
        """Say which budget ends the run before this generation, in which nothing is done yet."""
        seeds = self.config.seeds
        if any(
            self._begun(Generation(seed, track, generation)) for seed in seeds for track in TRACKS
        ):
            return ""  # it is completed, so that seeds and tracks stay equal
        if not any(self._allowance(seed, generation) for seed in seeds):
            return "the budget of evaluations is used up"
        spent = self.archive.spent()
        for currency in CURRENCIES:
            most = getattr(self.config.budget, currency)
            if not most:
                continue
            # Half a generation would leave seeds unequal: one is begun if the mean one still fits.
            if spent[currency] * (1 + 1 / generation if generation else 1) >= most:
                return f"the budget of {currency} is used up ({spent[currency]:g} of {most:g})"
        return ""

    def _allowance(self, seed: int, generation: int) -> int:
        """Return the evaluations that a search may use in a generation."""
        children = self.config.search.children
        if not self.config.budget.evaluations:
            return children
        used = self.archive.num_evaluated(seed, "search", generation)
        return min(children, self.config.budget.evaluations - used)

    def _begun(self, of: Generation) -> bool:
        return self.archive.num_calls(of) is not None

    def _wall(self) -> dict[str, float]:
        """Return the wall seconds since this was last asked, to be spent in a transaction."""
        before, self._clock = self._clock, time.monotonic()
        return {"wall_seconds": self._clock - before}

    # One generation of one track

    def _generation(self, of: Generation, count: int) -> None:
        if self.archive.is_closed(of):
            return
        per_generation = self.config.windows.per_generation
        windows = schedule(self.scale.sources, per_generation, of.seed, of.number)
        if not self._begun(of):
            with self.archive.write() as writer:
                writer.open_generation(of, windows, _entropy(of))
        islands = self._islands(of, windows)
        self._propose(of, count, islands, windows)
        self._evaluate(of, windows, islands)
        self._close(of, islands)

    def _islands(self, of: Generation, windows: Sequence[int]) -> list[list[Candidate]]:
        """Return the survivors of the generation before, visitors included, on these windows."""
        search = self.config.search
        islands: list[list[int]] = [[] for _ in range(search.islands)]
        if of.number:
            for member in self.archive.members(of._replace(number=of.number - 1)):
                islands[member.island].append(member.candidate)
        if search.migrate_every and of.number and of.number % search.migrate_every == 0:
            best = [island[0] for island in islands if island]  # members come best first
            for island, visitor in zip(islands, best[-1:] + best[:-1], strict=False):
                if visitor not in island:
                    island.append(visitor)
        everyone = sorted({number for island in islands for number in island})
        known: dict[int, Candidate] = {}
        for number, results in self.complete(everyone, windows).items():
            found = self.scale.stand(results, windows)
            known[number] = replace(
                self.archive.candidate(number),
                score=found.score,
                window_scores=found.window_scores,
                clean=found.clean,
            )
        return [[known[number] for number in island if number in known] for island in islands]

    def complete(
        self, numbers: Sequence[int], windows: Sequence[int]
    ) -> dict[int, dict[Cell, CellResult]]:
        """Run what is missing of candidates on some windows; return those that have it all."""
        found = {number: self.archive.results(number) for number in numbers}
        lacking: dict[tuple[int, ...], list[int]] = {}
        for number, results in found.items():
            having = {cell.window for cell in results}
            missing = tuple(window for window in windows if window not in having)
            if missing:
                lacking.setdefault(missing, []).append(number)
        for missing, group in lacking.items():
            texts = [self.archive.candidate(number).text for number in group]
            outcomes = self.evaluator.evaluate(texts, missing, [Limit()] * len(group))
            for number, outcome in zip(group, outcomes, strict=True):
                with self.archive.write() as writer:
                    writer.spend({"cpu_seconds": outcome.cpu_seconds} | self._wall())
                    if outcome.status == "ok":
                        writer.results(number, outcome.results)
                        found[number] |= outcome.results
                if outcome.status != "ok":
                    del found[number]  # it ran before: its limits are too tight for this machine
        return found

    # Proposing

    def _propose(
        self,
        of: Generation,
        count: int,
        islands: Sequence[Sequence[Candidate]],
        windows: Sequence[int],
    ) -> None:
        """Fill a generation with `count` new candidates, call by call, each call one transaction.

        Calls that are in the archive already are not made again: an answer may have cost money.
        """
        done = self.archive.num_calls(of) or 0
        known = self.archive.behaviours(of.seed, of.track)
        call = 0
        for place, (island, proposer, wanted) in enumerate(self._plan(of.track, of.number, count)):
            rng = np.random.default_rng([*_entropy(of), island, _CHOOSE])
            parents = lexicase(islands[island], self.config.search.parents, rng)
            paid = hasattr(proposer, "left")
            if hasattr(proposer, "briefing"):
                classics = self.archive.parse(self.archive.run().get("classics", "[]"))
                proposer.briefing = brief(self.archive, self.scale, windows, parents, of, classics)
            for _ in range(wanted if paid else ROUNDS):
                call += 1
                if call <= done:
                    continue
                have, dropped = self._num_accepted(of, place)
                # What costs money is asked for in small batches, so that each answer is kept soon;
                # of others as many are likely to be duplicates as were before.
                batch = min(getattr(proposer, "batch", 1), wanted - have)
                asked = batch if paid else wanted - have + dropped
                proposals: list[Proposal] = []
                if have < wanted and self._remind(proposer):
                    rng = np.random.default_rng([*_entropy(of), island, _BREED, call])
                    proposals = proposer.propose(parents, asked, rng)
                self._add(of, island, place, proposals, known, wanted - have)

    def _plan(self, track: str, generation: int, count: int) -> Iterator[tuple[int, Proposer, int]]:
        """Split a generation's candidates over islands and proposers."""
        proposers = self.proposers[track]
        shares = [share.share for share, _ in proposers]
        plan = split(count, self.config.search.islands, shares, generation)
        for island, parts in enumerate(plan):
            for (_, proposer), part in zip(proposers, parts, strict=True):
                yield island, proposer, part

    def _remind(self, proposer: Proposer) -> bool:
        """Tell a proposer that costs something what is left; return whether it may be asked."""
        if not hasattr(proposer, "left"):
            return True
        proposer.left = self._left(self.archive.spent())
        return all(left > 0 for left in proposer.left.values())

    def _num_accepted(self, of: Generation, place: int) -> tuple[int, int]:
        """Count the candidates of one place in the plan that will be scored, and those dropped."""
        query = (
            "SELECT count(*), total(status IN ('duplicate', 'form')) FROM candidates "
            "WHERE (seed, track, generation, place) = (?, ?, ?, ?)"
        )
        ((count, dropped),) = self.archive.rows(query, (*of, place))
        return int(count - dropped), int(dropped)

    def _add(
        self,
        of: Generation,
        island: int,
        place: int,
        proposals: Sequence[Proposal],
        known: dict[str, int],
        wanted: int,
    ) -> None:
        """Write the answer of one call; duplicates and what must not be compiled end here."""
        with self.archive.write() as writer:
            writer.called(of)
            writer.spend(self._wall())
            accepted = 0
            for proposal in proposals:
                usage = proposal.meta.get("usage", {})
                writer.spend({name: usage.get(name, 0.0) for name in CURRENCIES if name in usage})
                if accepted == wanted:
                    continue  # more than asked for
                text_sha256 = hashlib.sha256(proposal.text.encode(errors="replace")).hexdigest()
                behaviour, problem = self._behaviour(proposal)
                twin = known.get(text_sha256) or (known.get(behaviour) if behaviour else None)
                size = proposal.size or (0 if problem else count_nodes(proposal.text))
                own = {"size": size, "text_sha256": text_sha256, "behaviour": behaviour}
                number = writer.add(of, island, place, proposal, **own)
                if twin:
                    writer.outcome(number, "duplicate", f"decides as candidate {twin}")
                    continue
                known.setdefault(text_sha256, number)
                if problem:
                    writer.outcome(number, "form", problem)
                    continue
                accepted += 1
                if behaviour:
                    known.setdefault(behaviour, number)

    def _behaviour(self, proposal: Proposal) -> tuple[str, str]:
        """Return a text's behaviour, or what is wrong with its form."""
        try:
            self.check_form(proposal.text)
            return self.behaviour(proposal), ""
        except PolicyError as error:
            return "", " ".join(str(error).split()) or "it is no policy"

    # Scoring and selecting

    def _evaluate(
        self, of: Generation, windows: Sequence[int], islands: Sequence[Sequence[Candidate]]
    ) -> None:
        """Score what is pending, writing each outcome as it comes."""
        search = self.config.search
        pending = [one for one in self.archive.candidates(of) if one.status == "pending"]
        limits = [
            limit(islands[one.island], search.depth, one.size) if search.stop_early else Limit()
            for one in pending
        ]
        outcomes = self.evaluator.evaluate([one.text for one in pending], windows, limits)
        for candidate, outcome in zip(pending, outcomes, strict=True):
            self._record(candidate.number, outcome, windows)
            self._num_evaluated += 1
            self._report(of)

    def _record(self, number: int, outcome: Evaluated, windows: Sequence[int]) -> None:
        with self.archive.write() as writer:
            used = {"cpu_seconds": outcome.cpu_seconds}
            writer.spend(used | self._wall())
            writer.results(number, outcome.results)
            if outcome.status not in ("ok", "stopped"):
                writer.outcome(number, outcome.status, outcome.reason, **used)
                return
            stand = self.scale.stand if outcome.status == "ok" else self.scale.bound
            found = stand(outcome.results, windows)
            shown = {"score": found.score, "window_scores": found.window_scores}
            writer.outcome(number, outcome.status, found.reason, clean=found.clean, **shown, **used)

    def _close(self, of: Generation, islands: Sequence[Sequence[Candidate]]) -> None:
        """Decide who survives, with a sentence for everyone."""
        depth = self.config.search.depth
        children = self.archive.candidates(of)
        members: list[Member] = []
        verdicts: dict[int, Verdict] = {}
        for island, before in enumerate(islands):
            mine = [child for child in children if child.island == island]
            rivals = [*before, *(child for child in mine if child.status == "ok")]
            kept = survivors(rivals, depth)
            members += [
                Member(island, one.number, one.score, one.window_scores, one.clean) for one in kept
            ]
            for child in mine:
                verdicts[child.number] = judge(child, child in kept, rivals, depth)
        with self.archive.write() as writer:
            for number, verdict in verdicts.items():
                writer.verdict(number, verdict)
            writer.close_generation(of, members)
            writer.spend(self._wall())
        self._report(of)

    def _report(self, of: Generation) -> None:
        spent = self.archive.spent()
        best, control = (self.archive.best_score(of.seed, track) for track in TRACKS)
        self.progress(
            Progress(
                seed=of.seed,
                generation=of.number,
                generations=self.config.search.generations,
                best=best,
                control=control,
                evaluations=self._num_evaluated,
                planned=len(TRACKS) * len(self.config.seeds) * self.config.evaluations,
                wall_seconds=spent["wall_seconds"],
                left=self._left(spent),
            )
        )

    def _left(self, spent: Mapping[str, float]) -> dict[str, float]:
        """Return what is left of each budget that has a cap."""
        caps = {currency: getattr(self.config.budget, currency) for currency in CURRENCIES}
        return {currency: max(cap - spent[currency], 0.0) for currency, cap in caps.items() if cap}


def _entropy(of: Generation) -> list[int]:
    return [of.seed, TRACKS.index(of.track), of.number]
