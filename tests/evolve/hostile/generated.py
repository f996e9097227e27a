"""Families whose texts are too long, too deep or too odd to be written down."""

from collections.abc import Callable

KEY = "def waiting_key(request, engine):\n    return request.arrival_time\n"

DEPTHS = (60, 500, 20_000)


def _hook(*lines: str) -> str:
    return "def waiting_key(request, engine):\n" + "".join(f"    {line}\n" for line in lines)


def nesting() -> list[str]:
    """Return texts that are deep in every way that Python can be deep."""
    texts = []
    for depth in DEPTHS:
        expressions = [
            "(" * depth + "1" + ")" * depth,
            "[" * depth + "1" + "]" * depth,
            "{" * depth + "1" + "}" * depth,
            "abs(" * depth + "1" + ")" * depth,
            "(1 + " * depth + "1" + ")" * depth,
            "(" * depth,
            "{(" * depth,
            "[{" * depth,
            "f(" * depth,
            "-" * depth + "1",
            "not " * depth + "1",
            "~" * depth + "1",
            "1 if 1 else " * depth + "1",
            "1 + " * depth + "1",
            "1 ** " * depth + "1",
            "lambda: " * depth + "1",
            "await " * depth + "1",
            "*" * depth + "1",
            "request" + ".arrival_time" * depth,
            "request" + "[0]" * depth,
            "request" + "()" * depth,
            "(x := " * depth + "1" + ")" * depth,
            "f'{" * depth + "1" + "}'" * depth,
            '"" ' * depth,
            "[1 for x in " * depth + "y" + "]" * depth,
        ]
        texts += [_hook(f"return {expression}") for expression in expressions]
        texts += [
            "X = " + "(" * depth + "1" + ")" * depth + "\n" + KEY,
            "X = " + "-" * depth + "1\n" + KEY,
            "@f\n" * depth + KEY,
            "x = " * depth + "1\n" + KEY,
            _hook("if engine.now < 1:", "    return 1")
            + "".join(f"    elif engine.now < {n}:\n        return 1\n" for n in range(depth))
            + "    return 1\n",
        ]
    for depth in (20, 90, 150):
        for opening in ("if 1:", "while 1:", "for x in y:", "with x:", "try:", "class x:"):
            lines = [" " * n + opening for n in range(depth)]
            texts.append(_hook(*lines, " " * depth + "return 1"))
    return texts


def huge() -> list[str]:
    """Return texts with numbers, names and strings that are much too long."""
    texts = []
    for size in (100, 5_000, 15_000, 1_000_000):
        literals = (
            "9" * size,
            "0x" + "f" * size,
            "0b" + "1" * size,
            "1_" * size + "1",
            "1." + "0" * size,
            "1e" + "9" * size,
            "9" * size + "j",
            "x" * size,
        )
        texts += [_hook(f"return {literal}") for literal in literals]
        texts.append(f"X = {'9' * size}\n" + KEY)
    for size in (16_000, 100_000, 5_000_000):
        texts += [
            f"X = '{'x' * size}'\n" + KEY,
            f"# {'x' * size}\n" + KEY,
            f'"""{"x" * size}"""\n' + KEY,
            "\n" * size + KEY + "!",
            "X = (" + "1, " * size + ")\n" + KEY,
            "".join(f"X{n} = {n}\n" for n in range(size // 10)) + KEY,
            _hook(*(f"x{n} = {n}" for n in range(size // 10)), "return 1"),
            " " * size + KEY,
        ]
    texts += [
        f"X = {power}\n" + KEY
        for power in ("10**400", "2**63", "9**9**9", "-(2**64)", "1e308 * 1e308", "1 << 70",
                      "2**62 * 2**62 // 2**100", "7 // 0", "0.0 ** -1", "(-1) ** 0.5")
    ]  # fmt: skip
    texts += [KEY + "".join(f"\n\ndef f{n}(x):\n    return x\n" for n in range(count))
              for count in (8, 100, 1_000)]  # fmt: skip
    return texts


def unicode_tricks() -> list[str]:
    """Return texts that do not say what they seem to say."""
    wide = "".join(chr(0xFEE0 + ord(letter)) for letter in "waiting")
    bold = "".join(chr(0x1D5EE + ord(letter) - ord("a")) for letter in "import")
    cyrillic = KEY.replace("request", "r\u0435quest")
    odd = {
        "bidi override": "# \u202e } \u2066 if admin\u2069 \u2066\n",
        "bidi isolate": "# \u2067 begin \u2069\n",
        "zero width": "WEIGHT\u200b = 1\n",
        "joiner": "WEI\u200dGHT = 1\n",
        "no-break blank": "WEIGHT\u00a0= 1\n",
        "ideographic blank": "WEIGHT\u3000= 1\n",
        "line separator": "# a\u2028import os\n",
        "paragraph separator": "# a\u2029import os\n",
        "next line": "# a\u0085import os\n",
        "arabic digits": "WEIGHT = \u0661\u0662\n",
        "wide digits": "WEIGHT = \uff11\n",
        "superscript": "WEIGHT = 2\u00b2\n",
        "ligature": "DI\ufb00 = 1\n",
        "long s": "CO\u017fT = 1\n",
        "ordinal": "M\u00aa = 1\n",
        "kelvin": "\u212a = 1\n",
        "emoji": "\U0001f600 = 1\n",
        "accent": "E\u0301 = 1\n",
        "byte order mark": "\ufeff",
        "late byte order mark": "\nX = 1\ufeff\n",
        "surrogate": "# \ud800\n",
        "two surrogates": "# \ud83d\ude00\n",
        "noncharacter": "# \uffff\n",
        "private": "# \ue000\n",
        "tag": "# \U000e0041\n",
        "language tag": "X = 1 \U000e0001\n",
        "null": "X = 1\0\n",
        "null in a comment": "# \0\n",
        "null at the end": KEY + "\0",
        "carriage return": "# a\rimport os\n",
        "windows lines": KEY.replace("\n", "\r\n"),
        "form feed": "X = 1\n\fimport os\n",
        "vertical tab": "X = 1\n\vimport os\n",
        "tab": "X =\t1\n",
        "escape": "# \x1b[2Aimport os\n",
        "backspace": "# x\b\bimport os\n",
        "delete": "# \x7f\n",
        "end of file": "X = 1\n\x1aimport os\n",
        "bold import": f"{bold} os\n",
        "wide import": "\uff49mport os\n",
        "utf-7": "# -*- coding: utf-7 -*-\n# +AGkAbQBwAG8AcgB0ACAAbwBz-\n",
        "rot13": "# vim: set fileencoding=rot13 :\nvzcbeg bf\n",
        "second line": "\n# coding: utf_7\n",
        "raw unicode escape": "# coding=raw_unicode_escape\n# \\u000aimport os\n",
        "greek question mark": "X = 1\u037e import os\n",
        "line continuation": "X = 1 \\\n\\\n\\\n; import os\n",
    }
    texts = [text + KEY for text in odd.values()]
    texts += [cyrillic, KEY.replace("waiting", wide), KEY.replace("arrival", "arriv\u0430l")]
    texts += [KEY.replace(" ", "\u2003"), KEY.replace("    ", "\t"), KEY.replace("(", "\uff08")]
    return texts


def compile_bombs() -> list[str]:
    """Return texts of good form that make the compiler, or the engine, work as hard as they can."""
    doubling = "def f0(x):\n    return x * 1.5\n" + "".join(
        f"\n\ndef f{n}(x):\n    return f{n - 1}(x) + f{n - 1}(x + 1.0) + f{n - 1}(x + 2.0)\n"
        for n in range(1, 7)
    )
    calls = " + ".join("math.exp(-math.sin(request.priority + 0.5))" for _ in range(40))
    branches = [
        line
        for n in range(100)
        for line in (f"if engine.now > {n}.5:", f"    x = x * {n}.25 + 1.0 / (x + {n + 1}.0)")
    ]
    return [
        doubling + "\n\n" + _hook("return f6(engine.now)"),
        "import math\n\n\n" + _hook(f"return {calls}"),
        _hook(f"return {'1 < ' * 120}1"),
        _hook(f"return {'engine.now and ' * 100}1.0"),
        _hook("x = 1.0", *branches, "return x"),
        "import math\n\n\n" + _hook(*["x = math.exp(-0.5)"] * 200, "return x"),
        "T = (" + ", ".join(f"{n}.5" for n in range(120)) + ")\n\n\n"
        + _hook("return T[request.num_prompt_tokens % 120]"),
    ]  # fmt: skip


FAMILIES: dict[str, Callable[[], list[str]]] = {
    "nesting": nesting,
    "huge": huge,
    "unicode_tricks": unicode_tricks,
    "compile_bombs": compile_bombs,
}
STOPPED_BY = {"compile_bombs": ("ok", "timeout", "memory")}
