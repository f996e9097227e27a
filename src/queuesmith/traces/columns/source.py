"""The bytes of a trace file: read once, hashed, unpacked, told apart by content."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa

from queuesmith.documents import printable, read_file
from queuesmith.errors import TraceError

_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
#: How many times smaller a log may be packed, and bytes that any file may unpack to.
_MOST_PACKED, _FREE = 200, 1 << 26
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Source:
    """A trace file's content.

    Attributes
    ----------
    name : str
        The file name without its folder.
    sha256 : str
        Of the bytes on disk, still packed.
    form : {"csv", "jsonl", "parquet"}
    data : bytes
        Unpacked; for text, UTF-8 without byte order mark and leading ``#`` comment lines; a JSON
        array with one object a line.
    comment : str
        Those comment lines.
    """

    name: str
    sha256: str
    form: Literal["csv", "jsonl", "parquet"]
    data: bytes
    comment: str = ""


def open_source(path: Path) -> Source:
    """Read a file whole and find out what it is.

    Raises
    ------
    TraceError
        If it cannot be read, is empty, is damaged, or is neither UTF-8 text nor Parquet.
    """
    packed = read_bytes(path)
    name = printable(path.name)
    data = _unpack(name, packed)
    sha256 = hashlib.sha256(packed).hexdigest()
    if data.startswith(b"PAR1"):
        return Source(name, sha256, "parquet", data)
    text, comment = _split_comment(_check_text(name, data))
    if not text.strip():
        raise TraceError(f"{name} holds no rows; give a file with one request per row")
    text = _unfold_array(text)
    form: Literal["csv", "jsonl"] = "jsonl" if text.lstrip().startswith(b"{") else "csv"
    return Source(name, sha256, form, text, comment)


def read_bytes(path: Path) -> bytes:
    """Read a file that is not empty.

    Raises
    ------
    TraceError
        If it cannot be read or has no bytes.
    """
    try:
        data = read_file(path)
    except FileNotFoundError:
        raise TraceError(f"there is no file {str(path)!r}; check the path") from None
    except IsADirectoryError:
        raise TraceError(f"{path} is a directory; give one file in it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise TraceError(f"{str(path)!r} cannot be read: {reason.lower()}") from None
    if not data:
        raise TraceError(f"{path.name} is empty (0 bytes); fetch it again")
    return data


def _unpack(name: str, data: bytes) -> bytes:
    most = max(_FREE, _MOST_PACKED * len(data))
    for magic, compression in _PACKED.items():
        if data.startswith(magic):
            try:
                with pa.input_stream(pa.BufferReader(data), compression=compression) as stream:
                    unpacked: bytes = stream.read(most + 1)
            except (OSError, pa.ArrowException) as error:
                reason = one_line(error)
                raise TraceError(
                    f"{name} is a damaged {compression} file ({reason}); fetch it again"
                ) from None
            if len(unpacked) > most:
                raise TraceError(
                    f"{name} unpacks to more than {_MOST_PACKED} times its size, as no log does; "
                    "unpack it yourself if it is one"
                )
            return unpacked
    return data


def _check_text(name: str, data: bytes) -> bytes:
    text = data.removeprefix(_BOM)
    try:
        if not text.isascii():
            text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TraceError(
            f"{name} is not UTF-8 text (byte {text[error.start]:#04x} at {error.start:,}) and not "
            "Parquet, gzip or zstd; save it as one of these"
        ) from None
    if b"\0" in text:
        raise TraceError(
            f"{name} is binary, but not Parquet, gzip or zstd; save it as CSV, JSONL or Parquet"
        )
    return text


def _unfold_array(text: bytes) -> bytes:
    """Write the objects of a JSON array one a line; any other text stays as it is."""
    if not text.lstrip().startswith(b"["):
        return text
    try:
        items = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(items, list) or not any(isinstance(item, dict) for item in items):
        return text
    return "\n".join(map(json.dumps, items)).encode()


def _split_comment(text: bytes) -> tuple[bytes, str]:
    """Return the table, and the comment lines before it."""
    start = 0
    while text.startswith((b"#", b"\n", b"\r"), start):
        end = text.find(b"\n", start)
        start = len(text) if end < 0 else end + 1
    return text[start:], text[:start].decode("utf-8").strip()


def one_line(error: BaseException) -> str:
    """Return an error of a library in one short line, for use in brackets."""
    return " ".join(str(error).split())[:120].rstrip(" .;") or type(error).__name__
