"""Spoil a file that was right, as disks, editors, exports and ill will do.

Whatever has the methods of :class:`random.Random` may choose: the benchmark draws a hundred
thousand files from a seed, and hypothesis can shrink what it finds.
"""

import gzip
import re
from collections.abc import Callable
from random import Random

import pyarrow as pa

#: Numbers that are none, too large, too small, too long, or written in an odd way.
NUMBERS = [
    *(b"-1", b"0", b"-0", b"1", b"2", b"0.5", b"-0.0", b"1.5.2", b"1,5", b"1_000", b"+7", b" 7 "),
    *(b"nan", b"NaN", b"inf", b"-inf", b"+inf", b"Infinity", b"-Infinity", b"1e400", b"-1e400"),
    *(b"1e308", b"1e-320", b"1e-400", b"0x10", b"0b1", b"1e", b"e1", b"--1", b"", b"null", b"true"),
    *(b"2147483648", b"9007199254740993", b"9223372036854775807", b"9223372036854775808"),
    *(b"-9223372036854775809", b"18446744073709551616", b"1000000000000", b"4294967296"),
    *(b"9" * 25, b"9" * 400, b"9" * 5000, b"0x" + b"f" * 5000, b"1" + b"0" * 310 + b".5"),
    *("٣".encode(), b'""', b'"7"', b"[]", b"{}", b"[1, 2]", b'{"a" = 1}', b'{"a": 1}', b"false"),
]
#: Dates outside what clocks, calendars and zones have.
DATES = [
    *(b"2024-02-30 10:00:00", b"1700-01-01", b"2262-04-12", b"0000-00-00", b"9999-12-31T23:59:60Z"),
    *(b"2024-01-01T25:00:00", b"2024-01-01T10:00:00+99:99", b"2024-01-01T10:00:00+14:00"),
    *(b"2024-01-01T10:00:00-00:00", b"2024-03-31T02:30:00[Europe/Berlin]", b"1979-05-27"),
    *(b"30/Feb/2026:10:00:01 +0000", b"30/Nov/0000:10:00:01 +9999", b"07:32:00.999999", b"now"),
    b"2024-01-01 10:00:00." + b"1" * 40,
]
#: Texts that mean something to a shell, a path, a terminal, a page, a format or an encoding.
TEXTS = [
    *(b"", b" ", b"\\u0000", b"\\ud800", b"\\udfff\\ud800", b"../../etc/passwd", b"/dev/null"),
    *(
        b"/dev/zero",
        b"/proc/self/mem",
        b".",
        b"..",
        b"~",
        b"~nobody/x",
        b"~\\u0000",
        b"-",
        b"--help",
    ),
    *(
        b"[/]",
        b"[bold]",
        b"[/red]",
        b"{0}",
        b"%s",
        b"$x",
        b"`id`",
        b"<script>",
        b"]]>",
        b"\\",
        b"'",
    ),
    *("é".encode(), "日本語".encode(), "\U0001f642".encode(), "\u202e".encode(), "\ufeff".encode()),
    *(b"x" * 300, b"x" * 70_000, b"a@model", b"@model", b"fcfs", b"srpt_oracle", b"none", b"all"),
    *(b"sha256", b"../x.py", b"sjf(A=1)", b"noisy:nan", b"noisy:1e400", b"held_out", b"a/b\\nc"),
]
#: Bytes that end, open or break something.
BYTES = [
    *(
        b",",
        b"\n",
        b"\r",
        b"\r\n",
        b'"',
        b"'",
        b"{",
        b"}",
        b"[",
        b"]",
        b"#",
        b";",
        b"\t",
        b"=",
        b":",
    ),
    *(b"\0", b"\xff", b"\xef\xbb\xbf", b"\xc3", b"\x80", b"\x1a", b"\x1b[2J", b"\x7f", b"\x85"),
    *("\u2028".encode(), b"\x0b\x0c\x1c", b"PAR1", b"\x1f\x8b", b"BZh9", b"// ", b"\\"),
    *(
        b"[[",
        b"]]",
        b'"""',
        b"{{",
        b"[/x]",
        b"NaN",
        b"None",
        b"-----",
        b"__class__",
        b"\xed\xa0\x80",
    ),
]
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_QUOTED = re.compile(rb'"[^"\n]*"')
_DATE = re.compile(rb"\d{4}-\d\d-\d\d[ T][\d:.]+(?:Z|[+-][\d:]+)?|\d\d/[A-Z][a-z]{2}/\d{4}:[^\]]*")


def flip(data: bytes, rng: Random) -> bytes:
    """Change one byte, or one bit of it."""
    if not data:
        return data
    place = rng.randrange(len(data))
    mask = 1 << rng.randrange(8) if rng.random() < 0.5 else rng.randrange(1, 256)
    return data[:place] + bytes([data[place] ^ mask]) + data[place + 1 :]


def insert(data: bytes, rng: Random) -> bytes:
    """Put a few bytes in, or over others."""
    start = rng.randrange(len(data) + 1)
    piece = rng.choice(rng.choice([BYTES, NUMBERS, DATES]))
    return data[:start] + piece + data[start + rng.choice([0, 0, len(piece)]) :]


def cut(data: bytes, rng: Random) -> bytes:
    """Lose the end, the beginning, or something in between."""
    start, end = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    kind = rng.randrange(3)
    if kind == 0:
        return data[:end]
    return data[start:] if kind == 1 else data[:start] + data[min(end, start + 40) :]


def lines(data: bytes, rng: Random) -> bytes:
    """Repeat, drop, swap or join lines, or repeat one many times."""
    rows = data.split(b"\n")
    one, other = rng.randrange(len(rows)), rng.randrange(len(rows))
    kind = rng.randrange(5)
    if kind == 0:
        rows.insert(other, rows[one])
    elif kind == 1:
        del rows[one]
    elif kind == 2:
        rows[one], rows[other] = rows[other], rows[one]
    elif kind == 3:
        rows[one] = rows[one] + rows[other]
    else:
        rows[one:one] = [rows[one]] * 200
    return b"\n".join(rows)


def number(data: bytes, rng: Random) -> bytes:
    """Write another number in the place of one."""
    return _replace(data, _NUMBER, rng, lambda _: rng.choice(NUMBERS))


def text(data: bytes, rng: Random) -> bytes:
    """Write another text between two quotes, or no text at all."""

    def other(_: bytes) -> bytes:
        return rng.choice(NUMBERS) if rng.random() < 0.3 else b'"%s"' % rng.choice(TEXTS)

    return _replace(data, _QUOTED, rng, other)


def date(data: bytes, rng: Random) -> bytes:
    """Write another date in the place of one."""
    return _replace(data, _DATE, rng, lambda _: rng.choice(DATES))


def deepen(data: bytes, rng: Random) -> bytes:
    """Nest a value as deep as no file needs it."""
    depth = rng.choice([40, 900, 3_000, 100_000])
    left, right = rng.choice([(b"[", b"]"), (b'{"a":', b"}"), (b"{a=", b"}"), (b"(", b")")])
    return _replace(data, _NUMBER, rng, lambda one: left * depth + one + right * depth)


def dotted(data: bytes, rng: Random) -> bytes:
    """Put a key of many parts before a line."""
    rows = data.split(b"\n")
    key = b".".join([b"a"] * rng.choice([2, 500, 5_000]))
    rows.insert(rng.randrange(len(rows) + 1), rng.choice([key + b" = 1", b"[" + key + b"]"]))
    return b"\n".join(rows)


def twice(data: bytes, rng: Random) -> bytes:
    """Give a key a second time."""
    found = list(re.finditer(rb'("[^"\n]+"\s*:|^\w+ =)[^\n,}]*', data, re.MULTILINE))
    if not found:
        return lines(data, rng)
    one, other = rng.choice(found), rng.choice(found)
    between = b"," if b":" in other[1] else b"\n"
    return data[: one.start()] + other[0] + between + data[one.start() :]


def widen(data: bytes, rng: Random) -> bytes:
    """Make a line very long."""
    start = rng.randrange(len(data) + 1)
    piece = rng.choice([b"x", b",", b" ", b'"', b"1,", b"\\"])
    return data[:start] + piece * rng.choice([5_000, 300_000]) + data[start:]


def encode(data: bytes, rng: Random) -> bytes:
    """Save it in another encoding, with other line ends, or packed."""
    kind = rng.randrange(8)
    if kind == 0:
        return data.replace(b"\n", rng.choice([b"\r\n", b"\r", b"\n\r", b"\n\n", b"\x85"]))
    if kind == 1:
        return b"\xef\xbb\xbf" * rng.choice([1, 2]) + data
    if kind == 2:
        return gzip.compress(data, 1, mtime=0) + rng.choice([b"", b"\0" * 9, b"x"])
    if kind == 3:
        return bytes(pa.compress(data or b" ", codec="zstd", asbytes=True))
    if kind == 4:
        return gzip.compress(gzip.compress(data, 1, mtime=0), 1, mtime=0)
    coding = rng.choice(["utf-16", "utf-32", "utf-16-le", "utf-7", "cp500"])
    return data.decode("utf-8", "replace").encode(coding, "replace")


def foreign(data: bytes, rng: Random) -> bytes:
    """Be something else."""
    return rng.choice(
        [
            *(
                b"",
                b"\n",
                b" ",
                b"\0",
                b"#",
                b"{}",
                b"[]",
                b"null",
                b"0",
                b'""',
                b"{",
                b"[",
                b"a = 1",
            ),
            *(
                b"PAR1",
                b"PAR1" + b"\0" * 8 + b"PAR1",
                b"\x1f\x8b",
                b"SQLite format 3\0",
                b"%PDF-1.7",
            ),
            *(b"\x28\xb5\x2f\xfd", b"\xff\xfe", b"\x7fELF", b"<html>", b"ustar", b"\xfd7zXZ\0"),
            *(b'{"schema": 1}', b"schema = 1", b'{"a": NaN}', b"[" * 100_000, b'{"a":' * 50_000),
        ]
    )


def in_place(way: Callable[[bytes, Random], bytes], data: bytes, rng: Random) -> bytes:
    """Change something, with as many bytes as before."""
    start = rng.randrange(len(data))
    piece = data[start : start + 2_000]
    return data[:start] + way(piece, rng)[: len(piece)].ljust(len(piece)) + data[start + 2_000 :]


#: Of text, the likely ones several times.
OF_TEXT: list[Callable[[bytes, Random], bytes]] = [
    *(number, number, number, text, text, text, date, lines, lines, insert, insert, cut, flip),
    *(deepen, dotted, twice, widen, encode, foreign),
]
OF_BYTES: list[Callable[[bytes, Random], bytes]] = [flip, flip, flip, insert, cut, foreign]


def spoil(data: bytes, rng: Random, ways: list[Callable[[bytes, Random], bytes]]) -> bytes:
    """Apply one to four changes."""
    for _ in range(rng.choice([1, 1, 1, 2, 2, 3, 4])):
        data = rng.choice(ways)(data, rng)
        if len(data) > 2_000_000:
            break
    return data


def _replace(
    data: bytes, pattern: re.Pattern[bytes], rng: Random, other: Callable[[bytes], bytes]
) -> bytes:
    found = list(pattern.finditer(data))
    if not found:
        return insert(data, rng)
    one = rng.choice(found)
    return data[: one.start()] + other(one[0]) + data[one.end() :]
