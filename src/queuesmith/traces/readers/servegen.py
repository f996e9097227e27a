"""Read ServeGen's statistics: how often each client asked, and how long its requests were.

ServeGen publishes no requests. For each client (it calls them chunks) there is a
``chunk-N-trace.csv`` with one row per ten minutes (start, rate, coefficient of variation of gaps,
the family fitted to gaps and its two parameters, no header), and a ``chunk-N-dataset.json`` with
distributions of lengths per six hours.

References
----------
Xiang et al., "ServeGen: Workload Characterization and Generation of Large Language Model Serving
in Production", NSDI 2026. https://github.com/alibaba/ServeGen, Apache-2.0.
"""

import hashlib
import json
import re
import tarfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from lzma import LZMAError
from os import PathLike
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queuesmith.errors import TraceError
from queuesmith.traces.columns.source import one_line, read_bytes

_CHUNK = re.compile(r"chunk-(\d{1,9})-(trace\.csv|dataset\.json)")
_FAMILIES = ("", "Gamma", "Weibull")
#: How an archive begins: gzip, bzip2, xz; a plain tar says so further in.
_PACKED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\0")
_BROKEN = (tarfile.TarError, OSError, EOFError, LZMAError, zlib.error, ValueError)


@dataclass(frozen=True, eq=False)
class Distribution:
    """A discrete distribution as it was counted.

    Attributes
    ----------
    values : (num_values,) float64
        Ascending.
    weights : (num_values,) float64
        Above 0, with sum 1.
    """

    values: NDArray[np.float64]
    weights: NDArray[np.float64]

    @property
    def mean(self) -> float:
        """The expected value."""
        return float(self.values @ self.weights)


@dataclass(frozen=True, eq=False)
class LengthBin:
    """Lengths of one client's requests over a time; those without any requests are left out.

    Attributes
    ----------
    start : float
        Seconds.
    prompt_len, output_len : Distribution
        Tokens, at least 1; ServeGen does not say which go together.
    reason_ratio : Distribution or None
        Share of the output that is reasoning; only for reasoning models.
    """

    start: float
    prompt_len: Distribution
    output_len: Distribution
    reason_ratio: Distribution | None = None


@dataclass(frozen=True, eq=False)
class ServeGenClient:
    """One client.

    Attributes
    ----------
    number : int
        As in the file names.
    start : (num_bins,) float64
        Seconds at which each bin begins.
    rate : (num_bins,) float64
        Requests/s.
    gap_cv : (num_bins,) float64
        Coefficient of variation of gaps; 0 where there are no requests.
    gap_family : (num_bins,) str
        ``Gamma``, ``Weibull``, or empty where nothing was fitted.
    gap_parameters : (num_bins, 2) float64
        Shape and scale (s) as published. Their mean is that of the gaps between requests, which
        may cover only some of the bin, so it need not be 1 / `rate`.
    lengths : tuple of LengthBin
        In order of time; empty when the client's file is missing.
    """

    number: int
    start: NDArray[np.float64]
    rate: NDArray[np.float64]
    gap_cv: NDArray[np.float64]
    gap_family: NDArray[np.str_]
    gap_parameters: NDArray[np.float64]
    lengths: tuple[LengthBin, ...] = ()


@dataclass(frozen=True, eq=False)
class ServeGenStatistics:
    """What ServeGen publishes about one model's traffic.

    Attributes
    ----------
    name : str
        Of the archive or folder.
    sha256 : str
        Of the archive's bytes, or over the names and bytes of the files in a folder.
    clients : tuple of ServeGenClient
        By number.
    notes : tuple of str
        What is missing or was left out.
    """

    name: str
    sha256: str
    clients: tuple[ServeGenClient, ...]
    notes: tuple[str, ...] = field(default=())


def is_servegen(path: str | PathLike[str]) -> bool:
    """Tell whether a path is a folder, an archive or one file of ServeGen statistics."""
    path = Path(path)
    try:
        if path.is_dir():
            return any(_CHUNK.fullmatch(entry.name) for entry in path.iterdir())
        if not path.is_file():
            return False
        if _CHUNK.fullmatch(path.name):
            return True
        with path.open("rb") as file:
            head = file.read(512)
        if not (head.startswith(_PACKED) or head[257:262] == b"ustar"):
            return False
        with tarfile.open(path) as archive:
            return any(_CHUNK.fullmatch(PurePosixPath(entry.name).name) for entry in archive)
    except _BROKEN:
        return False


def read_servegen(path: str | PathLike[str]) -> ServeGenStatistics:
    """Read ServeGen statistics from a folder of chunk files, or a tar archive of one.

    Raises
    ------
    TraceError
        If there are none, or a file in it is damaged.
    """
    path = Path(path)
    files, sha256 = _read_folder(path) if path.is_dir() else _read_archive(path)
    numbers = sorted({number for number, _ in files})
    if not any((number, "trace.csv") in files for number in numbers):
        raise TraceError(
            f"{path.name} has no chunk-N-trace.csv; give a folder or tar archive of ServeGen's "
            "data, such as data/reason/deepseek-r1"
        )
    clients = []
    without_rates = without_lengths = 0
    for number in numbers:
        rates, lengths = (files.get((number, kind)) for kind in ("trace.csv", "dataset.json"))
        if rates is None:
            without_rates += 1
            continue
        without_lengths += lengths is None
        where = f"{path.name}: chunk-{number}"
        clients.append(
            ServeGenClient(
                number,
                *_parse_rates(f"{where}-trace.csv", rates),
                lengths=() if lengths is None else _parse_lengths(f"{where}-dataset.json", lengths),
            )
        )
    notes = []
    if without_lengths:
        notes.append(f"clients without lengths: {without_lengths:,} of {len(clients):,}")
    if without_rates:
        notes.append(f"clients without rates, left out: {without_rates:,}")
    return ServeGenStatistics(path.name, sha256, tuple(clients), tuple(notes))


_Files = dict[tuple[int, str], bytes]


def _read_folder(folder: Path) -> tuple[_Files, str]:
    files: _Files = {}
    digest = hashlib.sha256()
    for entry in sorted(folder.iterdir()):
        if match := _CHUNK.fullmatch(entry.name):
            data = read_bytes(entry)
            digest.update(f"{entry.name} {len(data)}\n".encode() + data)
            files[int(match[1]), match[2]] = data
    return files, digest.hexdigest()


def _read_archive(path: Path) -> tuple[_Files, str]:
    packed = read_bytes(path)
    files: _Files = {}
    try:
        with tarfile.open(fileobj=BytesIO(packed)) as archive:
            for entry in archive:
                match = _CHUNK.fullmatch(PurePosixPath(entry.name).name)
                content = archive.extractfile(entry) if match and entry.isfile() else None
                if match and content is not None:
                    files[int(match[1]), match[2]] = content.read()
    except _BROKEN as error:
        raise TraceError(
            f"{path.name} is not a tar archive that can be read ({one_line(error)}); give a folder "
            "or tar archive of ServeGen's data"
        ) from None
    return files, hashlib.sha256(packed).hexdigest()


def _parse_rates(
    where: str, data: bytes
) -> tuple[
    NDArray[np.float64],
    NDArray[np.float64],
    NDArray[np.float64],
    NDArray[np.str_],
    NDArray[np.float64],
]:
    """Return start, rate, CV, family and parameters of every bin."""
    rows = [line.split(",") for line in _decode(where, data).splitlines() if line.strip()]
    wrong = [number for number, row in enumerate(rows, 1) if len(row) != 6]
    if wrong or not rows:
        raise TraceError(
            f"{where} must have rows of start, rate, CV, family and two parameters, but row "
            f"{wrong[0] if wrong else 1} has not; fetch it again"
        )
    families = np.array([row.pop(3).strip() for row in rows])
    try:
        numbers = np.array(rows, dtype=np.float64)
    except ValueError as error:
        raise TraceError(f"{where} is damaged ({one_line(error)}); fetch it again") from None
    start, rate, gap_cv = numbers[:, :3].T
    if not np.isfinite(numbers).all() or (numbers < 0).any() or (np.diff(start) <= 0).any():
        raise TraceError(
            f"{where} must hold finite numbers of at least 0 in order of time; fetch it again"
        )
    unknown = sorted(set(families.tolist()) - set(_FAMILIES))
    if unknown:
        raise TraceError(f"{where}: the family of gaps must be Gamma or Weibull, got {unknown[0]}")
    return start, rate, gap_cv, families, numbers[:, 3:]


def _parse_lengths(where: str, data: bytes) -> tuple[LengthBin, ...]:
    try:
        bins = json.loads(_decode(where, data))
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where} is damaged ({one_line(error)}); fetch it again") from None
    if not isinstance(bins, dict) or not all(
        start.isdecimal() and len(start) < 16 and isinstance(one, dict)
        for start, one in bins.items()
    ):
        raise TraceError(f"{where} must map seconds to distributions; fetch it again")
    parsed = []
    for start, one in sorted(bins.items(), key=lambda item: int(item[0])):
        prompt_len = _parse_distribution(where, one, "input_tokens", least=1)
        output_len = _parse_distribution(where, one, "output_tokens", least=1)
        if prompt_len is not None and output_len is not None:
            ratio = _parse_distribution(where, one, "reason_ratio", least=0)
            parsed.append(LengthBin(float(start), prompt_len, output_len, ratio))
    return tuple(parsed)


def _parse_distribution(
    where: str, one: Mapping[str, Any], name: str, *, least: float
) -> Distribution | None:
    """Read text such as ``{45: 0.01, 46: 0.99}``; None when it is missing or has no weight."""
    text = one.get(name, "{}")
    try:
        inside = text.strip().removeprefix("{").removesuffix("}").replace(":", ",")
        numbers = np.array(inside.split(",") if inside.strip() else [], dtype=np.float64)
        values, weights = numbers.reshape(-1, 2).T
    except (AttributeError, ValueError) as error:
        raise TraceError(f"{where}: {name} is damaged ({one_line(error)})") from None
    if not np.isfinite(numbers).all() or (weights < 0).any() or (values < 0).any():
        raise TraceError(f"{where}: {name} must hold finite numbers of at least 0")
    # A length of 0 is a failed request, as in every other source.
    counted = (weights > 0) & (values >= least)
    values, weights = values[counted], weights[counted]
    if not len(values):
        return None
    order = np.argsort(values)
    return Distribution(values[order], weights[order] / weights.sum())


def _decode(where: str, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise TraceError(f"{where} is not UTF-8 text; fetch it again") from None
