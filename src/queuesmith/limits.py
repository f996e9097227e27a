"""Limits that a comparison must keep, for a user's own CI: ``ttft_p99 > 1.05*fcfs`` fails it."""

import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from queuesmith.errors import ConfigError, did_you_mean
from queuesmith.metrics import METRICS

_COMPARISONS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}

#: A limit names a metric, a policy and a load; nothing longer is one.
MAX_CHARACTERS = 1_000

_NUMBER = r"\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+"
_PATTERN = re.compile(
    rf"\s*(?P<metric>\w+)\s*(?P<comparison>>=|<=|>|<)\s*"
    rf"(?:(?P<factor>{_NUMBER})\s*(?:\*\s*(?P<scaled>[^@\s*].*?))?|(?P<policy>[^@\s*].*?))"
    rf"\s*(?:@\s*(?P<load>\S+))?\s*",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Limit:
    """A condition under which a comparison fails.

    Attributes
    ----------
    text : str
        As given: ``METRIC OPERATOR [FACTOR *] POLICY [@ LOAD]`` or
        ``METRIC OPERATOR NUMBER [@ LOAD]``.
    metric : str
        One of :data:`queuesmith.metrics.METRICS`.
    comparison : str
    factor : float
        The number itself, in seconds or tokens, when `policy` is empty.
    policy : str
        Whose value of the same metric, at the same load, is multiplied.
    load : str
        The only load to look at; all when empty.
    """

    text: str
    metric: str
    comparison: str
    factor: float
    policy: str
    load: str

    @classmethod
    def parse(cls, text: str, policies: Sequence[str], loads: Sequence[str]) -> Self:
        """Read a limit, given the names of the policies and loads that are compared.

        Raises
        ------
        ConfigError
            If it has another form, or names something that is not compared.

        Examples
        --------
        >>> Limit.parse("ttft_p99 > 1.05*fcfs @ knee", ["fcfs"], ["knee"]).factor
        1.05
        """
        # The pattern looks back, so that a long text would take the square of its length.
        found = _PATTERN.fullmatch(text) if len(text) <= MAX_CHARACTERS else None
        if found is None:
            raise ConfigError(
                f"the limit {text[:MAX_CHARACTERS]!r} cannot be read; write it like "
                "'ttft_p99 > 1.05*fcfs', "
                "'slo_attainment < 0.99' or 'ttft_p99 > 1.05*fcfs @ knee'"
            )
        policy = found["scaled"] or found["policy"] or ""
        for what, name, known in (
            ("metric", found["metric"], list(METRICS)),
            ("policy in this comparison", policy, policies),
            ("load in this comparison", found["load"] or "", loads),
        ):
            if name and name not in known:
                raise ConfigError(
                    f"the limit {text!r} names {name!r}, which is no {what}."
                    f"{did_you_mean(name, known)} Known: {', '.join(known)}"
                )
        return cls(
            text=text,
            metric=found["metric"],
            comparison=found["comparison"],
            factor=float(found["factor"] or 1.0),
            policy=policy,
            load=found["load"] or "",
        )

    def broken(
        self, rows: Iterable[tuple[str, str, Mapping[str, float]]], watched: Sequence[str]
    ) -> list[str]:
        """Say where the condition holds.

        Parameters
        ----------
        rows : iterable of (policy, load, metrics)
        watched : sequence of str
            The policies that must keep the limit.

        Returns
        -------
        list of str
            One sentence per policy and load. A value that is undefined on either side is said
            too: what cannot be checked has not been kept.
        """
        values = {(policy, load): metrics[self.metric] for policy, load, metrics in rows}
        sentences = []
        for (policy, load), value in values.items():
            if policy not in watched or policy == self.policy or self.load not in ("", load):
                continue
            base = values[self.policy, load] if self.policy else 1.0
            if math.isnan(value) or math.isnan(base):
                sentences.append(
                    f"{policy} at {load}: {self.text} cannot be checked, {self.metric} is undefined"
                )
            elif _COMPARISONS[self.comparison](value, self.factor * base):
                sentences.append(
                    f"{policy} at {load}: {self.metric} {value:.6g} {self.comparison} "
                    f"{self.factor * base:.6g} ({self.text})"
                )
        return sentences
