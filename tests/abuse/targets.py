"""Everything that reads a file or a text: how to make it read one, and what may come of it.

A target writes a spoiled file where it belongs and reads it as the command line would. Whatever is
raised but a `QueuesmithError`, and whatever is accepted but makes no sense, is a fault.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import numpy as np

from queuesmith.config import EngineConfig, Slo
from queuesmith.deploy.arms import read_steps
from queuesmith.deploy.calibrate import Steps
from queuesmith.deploy.engine_file import config_of, read_preset
from queuesmith.engine.presets.engine_args import parse_engine_args
from queuesmith.engine.presets.roofline import read_model_config, roofline_preset
from queuesmith.engine.presets.step_time import get_preset
from queuesmith.engine.result import ITL_EDGES
from queuesmith.errors import QueuesmithError
from queuesmith.evaluation.evaluate import parse_loads
from queuesmith.evolve.archive.archive import FILE, Archive
from queuesmith.evolve.archive.schema import Member
from queuesmith.evolve.candidate import Generation, Proposal, text_sha256
from queuesmith.evolve.config import parse_config, read_config
from queuesmith.evolve.diagnosis.evolution import read_judgements
from queuesmith.evolve.gates.ledger import HeldOut, Ledger
from queuesmith.evolve.run import begin, summary
from queuesmith.evolve.sandbox.allow_list import check_form
from queuesmith.evolve.scoring.cells import TOTALS, Cell, CellResult
from queuesmith.limits import Limit
from queuesmith.policies import get_policy, split_policies
from queuesmith.study.advise import advise
from queuesmith.study.design import Design
from queuesmith.study.inputs import features
from queuesmith.study.run import Study, plan, run_study
from queuesmith.study.run import describe as describe_study
from queuesmith.study.summary import load_summary, save_summary
from queuesmith.traces import MAX_TOKENS, Trace, load_trace
from queuesmith.traces.describe import describe
from queuesmith.traces.imported import import_file
from queuesmith.traces.readers.servegen import read_servegen
from queuesmith.traces.synthetic import load_model
from queuesmith.windows.frozen import WindowSet, is_window_set
from queuesmith.windows.predictions import OutputLengthKnowledge
from queuesmith.windows.tables import read_windows

from . import samples
from .mutate import OF_BYTES, OF_TEXT, date, flip, in_place, number, spoil, text
from .watch import Outcome, watch

#: A database in which values are changed, and keep their length, so that it stays one.
OF_ARCHIVE = [flip, *(partial(in_place, way) for way in (number, text, date))]

#: Reads what lies in a folder; draws of what else it may depend on.
Use = Callable[[Path, Random], object]


@dataclass(frozen=True)
class Target:
    """Something that reads.

    Attributes
    ----------
    name : str
    file : str
        Where its file goes, in a folder of its own.
    samples : tuple of bytes
        Files that it accepts.
    use : callable
        Read it.
    ways : list of callable
        How it is spoiled.
    others : mapping of str to bytes
        Files beside it that stay as they are.
    """

    name: str
    file: str
    samples: tuple[bytes, ...]
    use: Use
    ways: list[Callable[[bytes, Random], bytes]] = field(default_factory=lambda: OF_TEXT)
    others: dict[str, bytes] = field(default_factory=dict)

    def put(self, folder: Path, data: bytes) -> None:
        """Write the files."""
        for name, content in {**self.others, self.file: data}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def draw(self, rng: Random) -> bytes:
        """Return a spoiled file."""
        return spoil(rng.choice(self.samples), rng, self.ways)


def _check_trace(trace: Trace) -> None:
    assert len(trace) >= 1
    assert trace.arrival_time[0] == 0
    assert (np.diff(trace.arrival_time) >= 0).all()
    for lengths in (trace.prompt_len, trace.output_len):
        assert ((lengths >= 1) & (lengths <= MAX_TOKENS)).all()
    assert all(count > 0 for count in trace.origin.dropped.values())


COLUMNS = [
    {"arrival_time": "ts"},
    {"prompt_len": "prompt_len", "output_len": "prompt_len"},
    {"arrival_time": "TIMESTAMP", "prompt_len": "ContextTokens", "output_len": "GeneratedTokens"},
    {"client": "\x00", "turn": "[/]"},
    {"nothing": "here"},
    {"arrival_time": ""},
]


def _read_trace(folder: Path, rng: Random) -> None:
    columns = rng.choice(COLUMNS) if rng.random() < 0.1 else None
    unit = rng.choice(["s", "ms", "us", "ns", "", "min", "\x00"]) if rng.random() < 0.2 else None
    first = rng.choice([1, 5, 10**8, 0, -1, 10**30]) if rng.random() < 0.1 else None
    trace = load_trace(folder / "trace", columns=columns, unit=unit, num_requests=first)
    _check_trace(trace)
    describe(trace)


def _read_windows(folder: Path, rng: Random) -> None:
    for window in read_windows(folder / "trace"):
        _check_trace(window.trace)
        assert len(window.predicted_output_tokens) == len(window.trace)
        assert 0 < window.lambda_ref < np.inf


def _read_statistics(where: str, folder: Path, rng: Random) -> None:
    for client in read_servegen(folder / where).clients:
        assert (np.diff(client.start) > 0).all()
        assert np.isfinite(client.rate).all()


def _read_policy(folder: Path, rng: Random) -> None:
    policy = get_policy(folder / "mine.py")
    EngineConfig().override(policy.engine)
    with contextlib.suppress(QueuesmithError):
        check_form(policy.source)


def _read_design(folder: Path, rng: Random) -> None:
    design = Design.load(folder / "small.toml")
    few = all(source.num_windows <= 50 for source in design.sources) and design.window_len <= 1000
    if few and design.engines:  # the slot engine wants the windows that LSSP has published
        assert len(design.windows) > 0


def _read_window_set(folder: Path, rng: Random) -> None:
    path = folder / "set.toml"
    is_window_set(path)
    windows = WindowSet.load(path)
    HeldOut.of(windows)
    if all(source.options.get("num_requests", 0) <= 10_000 for source in windows.sources):
        for window in windows.windows(rng.choice(["tuning", "held_out", "x"])):
            _check_trace(window.trace)


def _read_model(folder: Path, rng: Random) -> None:
    path = folder / "mine.toml"
    is_window_set(path)
    model = load_model(str(path))
    _check_trace(model.sample(20, rng.randrange(10)))


def _read_engine(folder: Path, rng: Random) -> None:
    preset = read_preset(folder / "engine.toml")
    assert preset.step_time.seconds(10, 1, 20, 3.0) > 0
    parse_engine_args("--max-num-seqs 8", preset)


def _read_shape(folder: Path, rng: Random) -> None:
    shape = read_model_config(folder / "config.json")
    preset = roofline_preset(shape, bandwidth=3.35e12, flops=989e12, memory_gib=80)
    assert preset.step_time.seconds(10, 1, 20, 3.0) > 0


def _read_arguments(folder: Path, rng: Random) -> None:
    text = (folder / "arguments").read_bytes().decode("utf-8", "surrogateescape")
    parse_engine_args(text, get_preset("llama-3.1-8b/h100_sxm"))


def _read_option(folder: Path, rng: Random) -> None:
    from queuesmith.cli.options import parse_pairs, parse_slo

    # No system hands a process a longer argument.
    text = (folder / "option").read_bytes()[: 2**17].decode("utf-8", "surrogateescape")
    for parse in (
        parse_slo,
        parse_loads,
        OutputLengthKnowledge.parse,
        get_policy,
        split_policies,
        partial(parse_pairs, "--columns"),
        lambda text: Limit.parse(text, ["fcfs", "sjf"], ["knee"]),
    ):
        with contextlib.suppress(QueuesmithError):
            found = parse(text)
            assert not isinstance(found, Slo) or str(found)


def _read_steps(folder: Path, rng: Random) -> None:
    header, records = read_steps(folder / "steps.jsonl")
    Steps.of(records)
    config_of(header)


def _read_ledger(folder: Path, rng: Random) -> None:
    Ledger(folder / "ledger.jsonl").about(HeldOut((("a", 0, 5, "b" * 64),)))


def _read_judgement(folder: Path, rng: Random) -> None:
    read_judgements(folder)


def _read_summary(folder: Path, rng: Random) -> None:
    measured = features(load_trace(folder / "log.csv"))
    advise(
        load_summary(folder / "summary.json"),
        {name: [value] for name, value in measured.items()},
        metric=rng.choice(["ttft_mean", "e2el_p99", "slo_attainment"]),
        load=rng.choice(["0.9", "knee", "3"]),
        engine=None,
    )


def _import(folder: Path, rng: Random) -> None:
    import_file(folder / "trace", "mine", folder / "traces")


def _read_study(folder: Path, rng: Random) -> None:
    study = Study.load(folder)
    assert study.runs.num_rows == study.document["num_runs"]
    assert describe_study(study.design, plan(study.design))["parts"] == study.document["parts"]


def _read_archive(folder: Path, rng: Random) -> None:
    with Archive.read(folder) as archive:
        assert summary(archive, folder)["schema"]
        assert len(archive.candidates()) == 1
        archive.members((3, "search", 0))
        archive.results(1)


def _study() -> dict[str, bytes]:
    """Run a study of one window and return its files."""
    with tempfile.TemporaryDirectory() as folder:
        text = samples.DESIGN.partition(b'[[sources]]\nname = "logged"')[0] + (
            b'[[sources]]\nname = "drawn"\nmodel = "azure_2023_conv@model"\nnum_windows = 1\n'
        )
        path = Path(folder) / "small.toml"
        path.write_bytes(text)
        made = Path(folder) / "made"
        run_study(Design.load(path), made, backend="threading", num_workers=1)
        return _files(made)


def _archive() -> dict[str, bytes]:
    """Begin an evolution, add what one candidate has come to, and return its files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        begin(parse_config(samples.EVOLVE.decode(), "toy"), folder)
        proposal = Proposal(samples.POLICY.decode(), "gp", (), "mutated", 5, {"value": 1})
        with Archive.resume(folder) as archive, archive.write() as writer:
            writer.set("classics", "[]")
            first = Generation(3, "search", 0)
            writer.open_generation(first, [0, 1], [1, 2])
            writer.called(first)
            known = {"size": 5, "text_sha256": text_sha256(proposal.text), "behaviour": "c"}
            number = writer.add(first, 0, 0, proposal, **known)
            cell = CellResult(np.ones(len(TOTALS) + len(ITL_EDGES) - 1 + 9))
            writer.outcome(number, "ok", score=0.1, window_scores=[0.1, 0.2], clean=True)
            writer.results(number, {Cell(0, "heavy"): cell})
            writer.close_generation(first, [Member(0, number, 0.1, (0.1, 0.2), True)])
        return _files(folder)


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def _summary() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        save_summary(load_summary(), Path(folder) / "summary.json")
        return (Path(folder) / "summary.json").read_bytes()


def _ledger() -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "ledger.jsonl")
        opening = ledger.open(HeldOut((("a" * 64, 0, 5, "b" * 64),)), {"policy": "sjf"})
        ledger.close(opening, {"sentence": "It won."})
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def targets() -> Iterator[Target]:
    """Yield all targets."""
    texts, packed = samples.TRACES, samples.PACKED
    for name, sample in texts.items():
        yield Target(f"trace: {name}", "trace", (sample,), _read_trace)
    for name, sample in packed.items():
        yield Target(f"trace: {name}", "trace", (sample,), _read_trace, OF_BYTES)
    yield Target("trace: imported", "trace", tuple(texts.values()), _import)
    yield Target("table of windows", "trace", (samples.WINDOW_TABLE,), _read_windows)
    for name, sample in samples.SERVEGEN.items():
        use = partial(_read_statistics, ".")
        yield Target(f"servegen: {name}", name, (sample,), use, others=dict(samples.SERVEGEN))
    use = partial(_read_statistics, "x.tar.gz")
    yield Target("servegen: archive", "x.tar.gz", (samples.tar(),), use, OF_BYTES)

    log = {"log.csv": samples.log()}
    yield Target(
        "study design", "small.toml", (samples.DESIGN, samples.SLOTS), _read_design, others=log
    )
    yield Target(
        "evolve config",
        "toy.toml",
        (samples.EVOLVE,),
        lambda folder, rng: read_config(str(folder / "toy.toml")),
    )
    yield Target("engine preset", "engine.toml", (samples.PRESET,), _read_engine)
    yield Target("model config", "config.json", (samples.MODEL_CONFIG,), _read_shape)
    yield Target("workload model", "mine.toml", tuple(samples.workload_models()), _read_model)
    with tempfile.TemporaryDirectory() as folder:
        frozen = samples.window_set(Path(folder))
    yield Target("window set", "set.toml", (frozen,), _read_window_set, others=log)
    yield Target("engine arguments", "arguments", (samples.ARGUMENTS,), _read_arguments)
    yield Target("option", "option", tuple(OPTIONS), _read_option)
    yield Target("policy", "mine.py", (samples.POLICY, *BUILTIN), _read_policy)

    yield Target("record of steps", "steps.jsonl", (samples.RECORD,), _read_steps)
    ledger = _ledger()
    for name in ledger:
        yield Target(f"ledger: {name}", name, (ledger[name],), _read_ledger, others=ledger)
    study = _study()
    for name in study:
        yield Target(
            f"study folder: {'a part' if 'parts' in name else name}",
            name,
            (study[name],),
            _read_study,
            OF_TEXT if name.endswith(".json") else OF_BYTES,
            others=study,
        )
    archive = _archive()
    yield Target(
        "evolution: archive", FILE, (archive[FILE],), _read_archive, OF_ARCHIVE, others=archive
    )
    yield Target("judgement", "judged/a/judgement.json", (JUDGEMENT,), _read_judgement)
    yield Target("summary of a study", "summary.json", (_summary(),), _read_summary, others=log)


OPTIONS = [
    *(b"ttft=1.0,tpot=0.05", b"none", b"light,knee,0.7", b"noisy:0.2", b"exact"),
    *(b"sjf", b"aged_sjf(SECONDS_PER_TOKEN=0.01)", b"ttft_p99 > 1.05*fcfs @ knee", b"a=b,c=d"),
    *(b"slo_attainment < 0.99", b"kv_constrained", b"./mine.py"),
]
_BUILTIN_FOLDER = samples.TESTS.parent / "src" / "queuesmith" / "policies" / "builtin"
BUILTIN = [(_BUILTIN_FOLDER / f"{name}.py").read_bytes() for name in ("mlfq", "slai", "srpt")]
JUDGEMENT = (
    b'{"schema": "queuesmith.judgement/1", "policy": {"name": "a", "sha256": "b"}, '
    b'"verdict": "passed", "gates": [{"gate": "G0", "name": "form", "outcome": "passed"}]}'
)


def fuzz(target: Target, rng: Random, folder: Path) -> tuple[bytes, Outcome]:
    """Spoil a file, have it read in an empty folder, and judge; return the file, too."""
    data = target.draw(rng)
    return data, read(target, data, rng, folder)


def read(target: Target, data: bytes, rng: Random, folder: Path) -> Outcome:
    """Have a file read in an empty folder, and judge."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    target.put(folder, data)
    return watch(lambda: target.use(folder, rng))


#: By name.
TARGETS = {target.name: target for target in targets()}
