"""What policies are judged by: a configuration, its frozen windows, and a run if there was one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from queuesmith.errors import ConfigError
from queuesmith.evolve.archive.archive import FILE, Archive
from queuesmith.evolve.candidate import Candidate, text_sha256
from queuesmith.evolve.config import EvolveConfig, parse_config, read_config
from queuesmith.evolve.gates.control import Pair
from queuesmith.evolve.scoring.traffic import freeze_windows, run_windows
from queuesmith.windows.frozen import WindowSet


@dataclass(frozen=True)
class Case:
    """What candidates are judged by: a configuration, its windows, and the run if there was one."""

    config: EvolveConfig
    window_set: WindowSet
    pairs: tuple[Pair, ...] = ()  # what search and control found, seed by seed; empty without a run
    #: Of each text that the search found, by hash: its ancestors, oldest first.
    lineage: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    spent: Mapping[str, float] = field(default_factory=dict)  # what the run has used up

    @classmethod
    def of_run(cls, folder: Path) -> "Case":
        """Read what a run has left in its folder."""
        with Archive.read(folder) as archive:
            run = archive.run()
            config = parse_config(run["config"], f"the configuration in {folder}")
            windows = run_windows(folder, run)
            lineage: dict[str, Sequence[Mapping[str, Any]]] = {}
            pairs = []
            for seed in config.seeds:
                texts = {"search": "", "control": ""}
                for track in texts:
                    if champion := archive.champion(seed, track):
                        *_, own = ancestors = archive.ancestors(champion.candidate)
                        texts[track] = own.text
                        if track == "search":
                            lineage[text_sha256(own.text)] = [_shown(one) for one in ancestors]
                used = [archive.num_evaluated(seed, track) for track in texts]
                pairs.append(Pair(seed, texts["search"], texts["control"], *used))
            return cls(config, windows, tuple(pairs), lineage, archive.spent())

    @classmethod
    def of_config(cls, spec: str, folder: Path) -> "Case":
        """Freeze the windows of a configuration into a folder; without a run, and so a control."""
        config = read_config(spec)
        return cls(config, freeze_windows(config, folder))


def find_case(spec: str, folder: Path) -> Case:
    """Read a run's folder, or a configuration, whose windows are then frozen into `folder`."""
    if (Path(spec) / FILE).exists():
        return Case.of_run(Path(spec))
    if Path(spec).is_dir():
        raise ConfigError(f"there is no run in {spec}; give the folder of one, or a configuration")
    return Case.of_config(spec, folder)


def _shown(one: Candidate) -> dict[str, Any]:
    names = ("seed", "generation", "proposer", "parents", "note", "size", "score")
    shown = {name: getattr(one, name) for name in names} | {"parents": list(one.parents)}
    return {"candidate": one.number, **shown, "text_sha256": text_sha256(one.text)}
