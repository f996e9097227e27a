"""A study as a file: which policies run on which windows, at which loads, on which engines.

A design is checked whole before anything runs. Its hash covers its text, its policies, its engines
and every window, so that two results with one hash are results of the same study.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self

from queuesmith.config import Slo
from queuesmith.documents import parse_toml
from queuesmith.engine.presets.step_time import Preset
from queuesmith.errors import ConfigError
from queuesmith.evaluation.evaluate import Load
from queuesmith.policies import Policy
from queuesmith.policies.policy import load_text
from queuesmith.study import design_file
from queuesmith.study.design_file import SLOTS, Sensitivity, knowledge_name
from queuesmith.study.inputs import Source, SourceInputs, StudyWindow, read_inputs
from queuesmith.traces.columns.source import one_line
from queuesmith.windows.predictions import OutputLengthKnowledge


@dataclass(frozen=True)
class Design:
    """A study.

    Attributes
    ----------
    engine : {"queuesmith", "lssp_slots"}
        Ours, with the step times of `engines`, or the slot engine of LSSP.
    policies : tuple of Policy
        Empty for the slot engine.
    policy_names : tuple of str
        As rows name them; all different.
    loads : tuple of Load
        Empty for the slot engine.
    multipliers : mapping of str to float
        Of a window's reference rate, by load; empty for our engine.
    engines : tuple of Preset
        Empty for the slot engine.
    engine_settings : mapping
        Those that replace a preset's own, by engine.
    window_len : int
        Requests in each window.
    output_length : OutputLengthKnowledge
        What policies may know, but for `sensitivity`.
    slo : Slo
        Of goodput and attainment.
    metrics : tuple of str
        Those that are analysed; every metric is kept.
    seed : int
        Of windows, draws and predictions.
    folder : Path
        Files of sources and policies are looked for here first.
    """

    name: str
    title: str
    engine: Literal["queuesmith", "lssp_slots"]
    policies: tuple[Policy, ...]
    policy_names: tuple[str, ...]
    loads: tuple[Load, ...]
    multipliers: Mapping[str, float]
    engines: tuple[Preset, ...]
    engine_settings: Mapping[str, Mapping[str, Any]]
    sources: tuple[Source, ...]
    window_len: int
    output_length: OutputLengthKnowledge
    sensitivity: Sensitivity | None
    slo: Slo
    metrics: tuple[str, ...]
    reference: str
    seed: int
    folder: Path

    @classmethod
    def load(cls, design: str | PathLike[str]) -> Self:
        """Read a design of the package by name, or one of your own by its ``.toml`` path.

        Windows are read when they are asked for.

        Raises
        ------
        ConfigError
            If there is no such design, or it says what makes no sense.
        PolicyError
            If a policy does not exist or breaks its contract.

        Examples
        --------
        >>> len(Design.load("atlas").policy_names) >= 13
        True
        """
        text, where, folder = design_file.read_text(str(design))
        try:
            table = parse_toml(text)
        except ValueError as error:
            raise ConfigError(f"{where} is not TOML ({one_line(error)}); correct it") from None
        return cls.parse(table, where, folder)

    @classmethod
    def parse(
        cls,
        table: Mapping[str, Any],
        where: str,
        folder: Path,
        policies: Mapping[str, Policy] | None = None,
    ) -> Self:
        """Make a design of the values of its file, called `where`, with policies that are there."""
        file = design_file.DesignFile(where, table)
        name, engine = file.name(), file.engine()
        loaded = () if engine == SLOTS else file.policies(folder, policies or {})
        names = tuple(policy.name for policy in loaded) or file.panel()
        loads = () if engine == SLOTS else file.loads()
        multipliers = file.multipliers() if engine == SLOTS else {}
        presets = () if engine == SLOTS else file.engines()
        file.refuse_what_is_not_of(engine)
        return cls(
            name=name,
            title=file.text("title", name),
            engine=engine,
            policies=loaded,
            policy_names=names,
            loads=loads,
            multipliers=multipliers,
            engines=presets,
            engine_settings=file.engine_settings(),
            sources=file.sources(),
            window_len=file.number("window_len", 1_000, least=2),
            output_length=file.output_length(),
            sensitivity=file.sensitivity(
                engines=[preset.name for preset in presets],
                loads=[load.name for load in loads],
                policies=names,
                reference=file.reference(names),
            ),
            slo=file.slo(),
            metrics=file.metrics(engine),
            reference=file.reference(names),
            seed=file.number("seed", 0),
            folder=folder,
        )

    def with_windows(self, num_windows: int) -> Self:
        """Return the design with at most so many windows of each source: another study."""
        if num_windows < 1:
            raise ConfigError(f"a study needs at least 1 window of a source, got {num_windows}")
        sources = tuple(
            replace(source, num_windows=min(source.num_windows, num_windows))
            for source in self.sources
        )
        return replace(self, sources=sources)

    @property
    def load_names(self) -> tuple[str, ...]:
        """Loads as rows name them."""
        return tuple(load.name for load in self.loads) or tuple(self.multipliers)

    @property
    def engine_names(self) -> tuple[str, ...]:
        """Engines as rows name them."""
        return tuple(preset.name for preset in self.engines) or (SLOTS,)

    @cached_property
    def inputs(self) -> tuple[SourceInputs, ...]:
        """The windows of every source."""
        if self.engine == SLOTS:
            from queuesmith.study.lssp import read_slot_inputs

            return read_slot_inputs(self.sources)
        return tuple(
            read_inputs(source, window_len=self.window_len, seed=self.seed, folder=self.folder)
            for source in self.sources
        )

    @property
    def windows(self) -> tuple[StudyWindow, ...]:
        """All windows, source after source."""
        return tuple(window for source in self.inputs for window in source.windows)

    @property
    def table(self) -> dict[str, Any]:
        """The design as values of TOML and JSON, with everything said that may be left out."""
        table: dict[str, Any] = {
            "name": self.name,
            "title": self.title,
            "engine": self.engine,
            "policies": list(self.policy_names),
            "window_len": self.window_len,
            "sources": [
                {
                    "name": source.name,
                    "files": list(source.files),
                    "model": source.model,
                    "num_windows": source.num_windows,
                    **({"share": source.share} if source.share < 1 else {}),
                }
                for source in self.sources
            ],
            "output_length": knowledge_name(self.output_length),
            "slo": {key: limit for key, limit in asdict(self.slo).items() if limit is not None},
            "metrics": list(self.metrics),
            "reference": self.reference,
            "seed": self.seed,
        }
        if self.engine == SLOTS:
            table["multipliers"] = dict(self.multipliers)
        else:
            table["engines"] = [preset.name for preset in self.engines]
            if self.engine_settings:
                table["engine_settings"] = {
                    name: dict(settings) for name, settings in self.engine_settings.items()
                }
            table["loads"] = [load.name for load in self.loads]
        if self.sensitivity is not None:
            table["sensitivity"] = {
                "predictions": [knowledge_name(one) for one in self.sensitivity.predictions],
                "engines": list(self.sensitivity.engines),
                "loads": list(self.sensitivity.loads),
                "policies": list(self.sensitivity.policies),
            }
        return table

    @cached_property
    def sha256(self) -> str:
        """Hash of the design, its policies, its engines and its windows."""
        everything = {
            "design": self.table,
            "policies": {policy.name: policy.sha256 for policy in self.policies},
            "engines": [asdict(preset) for preset in self.engines],
            "windows": [
                (window.source, window.window.index, window.kind, window.sha256)
                for window in self.windows
            ],
        }
        return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()


def restore(table: Mapping[str, Any], policies: Sequence[Mapping[str, Any]]) -> Design:
    """Make a design of what a study's document says, with the policies as they were then."""
    texts = {
        one["name"]: load_text(one["name"], one["source"], Path(f"{one['name']}.py"))
        for one in policies
    }
    return Design.parse(table, "the design of the study", Path(), texts)
