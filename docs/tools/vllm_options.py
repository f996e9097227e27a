"""The page of vLLM's options, made from the table that ``--engine-args`` is read with.

Renew ``docs/reference/vllm_options.md`` with ``python docs/tools/vllm_options.py >
docs/reference/vllm_options.md``; a test says when that is due.
"""

from queuesmith.engine.presets.vllm_options import VLLM_VERSION, VllmOption, vllm_options

HEAD = f"""\
# vLLM's options

`--engine-args "..."` takes the line with which you start `vllm serve`. These are all options of
vLLM {VLLM_VERSION}, in the order of `vllm serve --help=all`, and what becomes of each. The page is
made from `engine/presets/vllm_options.csv`, which a test compares with the installed vLLM's parser.

- **followed**: the simulated engine does what vLLM does.
- **preset**: changes how long a step takes or how much KV cache fits, which comes with the engine
  preset ([step times](../background/step_times.md)). A note says so; to have it right, [measure
  your own engine](../guides/calibrate.md).
- **not simulated**: changes what vLLM schedules. A note says so, and the answer may differ from
  what your server would do.
- **no effect**: nothing that a scheduler sees. One note lists them.
- **gone**: no longer an option. A note says since when.

A value under *unless* needs no note. What is no option of vLLM {VLLM_VERSION} is refused where the
name is nearly that of one; else a note says that it was not read. Values of `--api-key` and
`--hf-token` are shown and stored nowhere.
"""


def page() -> str:
    """Return the page as Markdown."""
    options = list(vllm_options().values())
    rows = [_row(option) for option in options]
    counts = {kind: sum(one.kind == kind for one in options) for kind in _kinds(options)}
    counted = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    head = "| option | other names | kind | unless | what is said, or what it does |\n"
    return f"{HEAD}\n{counted}.\n\n{head}|---|---|---|---|---|\n" + "\n".join(rows) + "\n"


def _kinds(options: list[VllmOption]) -> list[str]:
    return list(dict.fromkeys(option.kind for option in sorted(options, key=lambda o: o.kind)))


def _row(option: VllmOption) -> str:
    name = f"`--{'[no-]' if option.takes == 'switch' else ''}{option.name}`"
    also = ", ".join(f"`{other}`" for other in option.also)
    unless = ", ".join(f"`{value}`" for value in option.unless)
    return f"| {name} | {also} | {option.kind} | {unless} | {option.words} |"


if __name__ == "__main__":
    print(page(), end="")
