"""A small case to be judged: eight windows of 150 requests in each part, and policies for it."""

from dataclasses import replace
from pathlib import Path

from queuesmith.evolve.gates.case import Case
from queuesmith.evolve.gates.control import Pair
from queuesmith.policies.policy import load_text

CONFIG = """
name = "small"
seeds = [0, 1, 2, 3, 4]
loads = ["heavy"]
second_engine = "llama-3.1-8b/a100_sxm"

[[source]]
file = "azure_2023_code@model"
num_requests = 8_000

[windows]
num_windows = 8
window_len = 150
per_generation = 2

[guards]
tpot_mean = 0.25

[search]
generations = 2
children = 6
islands = 1
depth = 2
classics = ["las"]
"""

#: Passes every gate on these windows when it is held against FCFS and las.
GOOD = '''"""Shortest first; whoever has waited as long as the backlog explains goes by arrival.

Knows:   arrival time, prompt length, backlog.
"""

SHARE = {share}


def waiting_key(request, engine):
    wait = engine.now - request.arrival_time
    if wait > SHARE * engine.peak_backlog_time:
        return -wait
    return request.num_prompt_tokens
'''
GOOD_TEXT = GOOD.format(share=0.6)
#: Hardly does anything.
WEAK_TEXT = GOOD.format(share=0.05)
#: Does what is good where prompts are computed fast, and the opposite elsewhere.
ONE_MACHINE_TEXT = """
def waiting_key(request, engine):
    wait = engine.now - request.arrival_time
    if wait > 0.6 * engine.peak_backlog_time:
        return -wait
    if engine.token_rate < 20_000.0:
        return -request.num_prompt_tokens
    return request.num_prompt_tokens
"""


def policy(text, name="mine"):
    return load_text(name, text, Path(f"{name}.py"))


def small_case(folder, *changes):
    """Freeze the small configuration, with some lines replaced; no run belongs to it."""
    text = CONFIG
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = folder / "small.toml"
    path.write_text(text)
    return Case.of_config(str(path), folder)


def with_run(case, search=GOOD_TEXT, control=WEAK_TEXT, num_seeds=5, evaluations=(12, 12)):
    """Add what a run would have found: the same with every seed."""
    return replace(
        case, pairs=tuple(Pair(seed, search, control, *evaluations) for seed in range(num_seeds))
    )
