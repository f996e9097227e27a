"""Every verb with every option, and values that nobody should give.

Verbs and options are asked of the command line itself, so that a new one is tried as soon as it is
there; `USUAL` has to say only how to call a new verb.
"""

import contextlib
import io
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

from cyclopts import App

import queuesmith.cli
from queuesmith.errors import QueuesmithError

from . import samples
from .watch import Outcome, watch

#: How to call a verb so that it is done in a moment.
USUAL: dict[tuple[str, ...], list[str]] = {
    ("compare",): [
        "log.csv",
        "--policies",
        "sjf",
        "--loads",
        "heavy",
        "--windows",
        "2",
        "--window-len",
        "10",
    ],
    ("plan",): ["log.csv", "--policies", "fcfs", "--windows", "2", "--window-len", "10"],
    ("recommend",): ["log.csv", "--windows", "2", "--window-len", "10"],
    ("simulate",): ["log.csv"],
    ("check",): ["measured.csv"],
    ("policies",): ["sjf"],
    ("traces", "list"): [],
    ("traces", "describe"): ["log.csv"],
    ("traces", "fetch"): ["nothing"],
    ("traces", "import"): ["log.csv", "--name", "mine"],
    ("traces", "fit"): ["long.csv", "--name", "mine"],
    ("study", "report"): ["folder"],
    ("study", "advise"): ["--trace", "log.csv"],
    ("study", "run"): ["small.toml", "--dry-run", "--windows", "1"],
    ("study", "list"): [],
    ("ab",): [
        "--policy",
        "sjf",
        "--trace",
        "log.csv",
        "--export",
        "timed_trace",
        "--load",
        "2/s",
        "--window-len",
        "10",
    ],
    ("evolve", "judge"): ["folder", "--through", "G0"],
    ("evolve", "report"): ["folder"],
    ("evolve", "diagnose"): ["folder"],
    ("evolve", "run"): ["toy.toml", "--dry-run"],
    ("evolve", "resume"): ["folder"],
    ("calibrate",): ["--records", "steps.jsonl"],
    ("serve",): ["model", "--policy", "sjf", "--dry-run"],
}

NUMBERS = [
    *(
        "-1",
        "0",
        "1",
        "2",
        "7",
        "-0",
        "0.5",
        "nan",
        "inf",
        "-inf",
        "1e400",
        "-1e400",
        "1e-320",
        "1e9",
    ),
    *(
        "9" * 25,
        "9" * 5000,
        "0x10",
        "1_000",
        "",
        " ",
        "1,5",
        "٣",
        "one",
        "1e3",
        "9223372036854775808",
    ),
    *("4294967296", "1" + "0" * 310, "True", "none", "--", "-"),
]
TEXTS = [
    *(
        "",
        " ",
        ",",
        "=",
        "a=b",
        "a=b,c",
        ",,",
        "=,=",
        "\n",
        "\t",
        "\x1b[2J",
        "[/]",
        "[bold]x",
        "%s",
    ),
    *(
        "é",
        "日本語",
        "\U0001f642",
        "\u202e",
        "\ud800",
        "\udcff",
        "x" * 300,
        "x" * 100_000,
        "'",
        '"',
    ),
    *(
        "{}",
        "{0}",
        "*",
        "**",
        "~",
        "~nobody",
        "--help",
        "-h",
        "--",
        "all",
        "none",
        "fcfs",
        "fcfs,fcfs",
    ),
    *("sjf()", "sjf(", "aged_sjf(SECONDS_PER_TOKEN=nan)", "aged_sjf(SECONDS_PER_TOKEN=1e400)"),
    *(
        "aged_sjf(SECONDS_PER_TOKEN=" + "9" * 5000 + ")",
        "srpt_oracle",
        "./mine.py",
        "mine.py",
        "[x].py",
    ),
    *("noisy:nan", "noisy:inf", "noisy:1e400", "noisy:-1", "exact", "noisy:1e300", "noisy:"),
    *("ttft=1", "ttft=nan", "ttft=inf,tpot=1e400", "ttft=0", "ttft=" + "9" * 400, "e2el=1e-320"),
    *("heavy", "1e-300", "100", "1e400", "nan", "knee,knee", "0.5,0.50", "2/s", "nan/s", "1e400/s"),
    *("ttft_p99 > 1", "ttft_p99 > nan", "ttft_p99 > 1e400*fcfs @ heavy", "slo_attainment < 1"),
    *("arrival_time=prompt_len", "arrival_time=\x1b", "client=output_len,prompt_len=output_len"),
    *("s", "ms", "ns", "llama-3.1-8b/a100_sxm", "constant_1ms", "engine.toml", "log.csv", "tuning"),
    *("--max-num-seqs 4", "--max-num-seqs " + "9" * 5000, "--watermark nan", "--x 'a", "-- --"),
    *(
        "azure_2023_conv@model",
        "mine.toml",
        "set.toml",
        "@model",
        "x@model",
        ".toml",
        "a.toml@model",
    ),
    *("dask", "ray", "threading", "loky", "G0", "G9", "aiperf", "http://127.0.0.1:9", "file:///x"),
    *("ttft_mean", "e2el_p99", "round_robin", "power_of_two", "prefix_affinity", "h100_sxm"),
]
PATHS = [
    *(
        "log.csv",
        "folder",
        "pipe",
        "loop",
        "empty",
        "/dev/null",
        "/dev/zero",
        "/dev/full",
        ".",
        "..",
        "/",
    ),
    *(
        "missing",
        "missing/deeper",
        "log.csv/deeper",
        "x" * 300,
        "a/" * 3000,
        "[x].csv",
        "\udcff.csv",
    ),
    *(
        "\x1b[2J.csv",
        "new\nline.csv",
        "日本語.csv",
        "steps.jsonl",
        "engine.toml",
        "mine.py",
        "[x].py",
    ),
    *(
        "toy.toml",
        "small.toml",
        "set.toml",
        "config.json",
        "judgement.json",
        "ledger.jsonl",
        "~",
        "",
    ),
    *(
        "/proc/self/mem",
        "/proc/self/environ",
        "/sys",
        "loop/x",
        "pipe.toml",
        "zero.toml",
        "pipe.py",
    ),
    *("out.csv", "out.parquet", "out.json", "out.toml", "/dev/full.toml", "out/x.html", "-", "--"),
    *(
        "mine.toml",
        "./mine.toml@model",
        "dangling",
        "dangling.toml",
        "dangling.py",
        "log.csv\udc80",
    ),
]


def verbs(
    app: App | None = None, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], App]]:
    """Yield every verb by its words."""
    app = app or queuesmith.cli.app
    for name in app:
        if not name.startswith("-"):
            below = [other for other in app[name] if not other.startswith("-")]
            if below:
                yield from verbs(app[name], (*path, name))
            else:
                yield (*path, name), app[name]


def options(app: App) -> dict[str, str]:
    """Return the options of a verb, each with what it wants: flag, number, path or text."""
    found = {}
    for one in app.assemble_argument_collection():
        name, hint = one.names[0], str(one.hint)
        if name.startswith("--") and name not in ("--model", "--base-url", "--served-model"):
            kinds = {"bool": "flag", "int": "number", "float": "number", "Path": "path"}
            found[name] = next((kind for word, kind in kinds.items() if word in hint), "text")
    return found


def draw(path: tuple[str, ...], app: App, rng: Random) -> list[str]:
    """Return a command of a verb with something wrong in it, or nothing."""
    words = list(USUAL[path])
    known = options(app)
    for _ in range(rng.choice([1, 1, 1, 2, 2, 3])):
        if rng.random() < 0.25 and words:
            words[rng.randrange(len(words))] = _value("", rng)
        elif known:
            name = rng.choice(sorted(known))
            while name in words:  # else it would be given twice, which is refused
                del words[words.index(name) : words.index(name) + 2]
            if known[name] == "flag":
                words.append(name)
            elif rng.random() < 0.5:
                words.append(f"{name}={_value(known[name], rng)}")
            else:
                words += [name, _value(known[name], rng)]
    return [*path, *words]


def _value(kind: str, rng: Random) -> str:
    pools = {"number": NUMBERS, "text": TEXTS, "path": PATHS}
    if kind not in pools or rng.random() < 0.15:
        return rng.choice(rng.choice([NUMBERS, TEXTS, PATHS]))
    return rng.choice(pools[kind])


def furnish(folder: Path) -> None:
    """Fill a folder with files that are right, and with things that are no files."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in (b"log.csv", b"[x].csv", b"\xff.csv", b"\x1b[2J.csv", b"new\nline.csv", b"x\x80"):
        (Path(os.fsdecode(os.fsencode(folder) + b"/" + name))).write_bytes(samples.log())
    (folder / "日本語.csv").write_bytes(samples.log())
    (folder / "long.csv").write_bytes(samples.log(700))
    (folder / "measured.csv").write_bytes(samples.measured())
    for name in ("mine.py", "[x].py"):
        (folder / name).write_bytes(samples.POLICY)
    (folder / "set.toml").write_bytes(samples.window_set(folder))
    (folder / "mine.toml").write_bytes(samples.workload_models()[0])
    (folder / "small.toml").write_bytes(samples.DESIGN)
    (folder / "toy.toml").write_bytes(samples.EVOLVE)
    (folder / "engine.toml").write_bytes(samples.PRESET)
    (folder / "config.json").write_bytes(samples.MODEL_CONFIG)
    (folder / "steps.jsonl").write_bytes(samples.RECORD)
    (folder / "ledger.jsonl").write_bytes(b"{}\n")
    (folder / "empty").touch()
    (folder / "folder").mkdir()
    for name in ("pipe", "pipe.toml", "pipe.py"):
        os.mkfifo(folder / name)
    (folder / "loop").symlink_to("loop")
    (folder / "zero.toml").symlink_to("/dev/zero")
    for name in ("dangling", "dangling.toml", "dangling.py"):
        (folder / name).symlink_to("nowhere")


def call(words: list[str]) -> str:
    """Run a command in this process, check how it leaves, and return what it printed.

    Raises
    ------
    QueuesmithError
        With the one line that was printed, when the command was refused.
    """
    out = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace")
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", errors="backslashreplace")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = queuesmith.cli.run(words)
    printed, said = (_text(stream) for stream in (out, err))
    assert "Traceback" not in said + printed, said
    assert status in (0, 1, 2), f"status {status}"
    if status == 2:
        errors = [line for line in said.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1, said
        raise QueuesmithError(errors[0])
    if "--json" in words and printed and not {"-h", "--help", "--version"} & {*words}:
        json.loads(printed, parse_constant=_no_number)
    return printed


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    stream.seek(0)
    return stream.read()


def _no_number(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Be in a folder, with caches, ledger and traces of its own, and no network."""
    here, before = Path.cwd(), dict(os.environ)
    own = {
        "QUEUESMITH_TRACES": str(folder / "traces"),
        "QUEUESMITH_LEDGER": str(folder / "own_ledger.jsonl"),
        "XDG_CACHE_HOME": str(folder.parent / "cache"),
        "QUEUESMITH_CACHE": str(folder.parent / "cache"),
        queuesmith.cli.TRACEBACK_VARIABLE: "1",
        "COLUMNS": "80",
        **dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9"),
    }
    os.environ.update(own)
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(before)


def fuzz(path: tuple[str, ...], app: App, rng: Random) -> tuple[list[str], Outcome]:
    """Call a verb in the folder this process is in, and judge; return the command, too."""
    words = draw(path, app, rng)
    outcome = watch(lambda: call(words))
    for made in ("runs", "out", "traces", "missing", "mine"):
        shutil.rmtree(made, ignore_errors=True)
    return words, outcome
