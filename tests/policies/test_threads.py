"""Policies are read by several threads at once: CPython 3.11 parses in one at a time."""

import ast
import time
from concurrent.futures import ThreadPoolExecutor

import queuesmith as qs
from queuesmith.policies import get_policy
from queuesmith.traces.trace import Trace

SPECS = ("sjf", "aged_sjf(SECONDS_PER_TOKEN=0.01)")


def test_no_two_threads_parse_at_the_same_time(monkeypatch):
    parse, parsing, met = ast.parse, [], []

    def slow_parse(*arguments, **options):
        parsing.append(1)
        met.append(len(parsing))
        time.sleep(0.005)  # the others come meanwhile, if they may
        try:
            return parse(*arguments, **options)
        finally:
            parsing.pop()

    monkeypatch.setattr(ast, "parse", slow_parse)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(get_policy, SPECS * 4))

    assert [policy.name for policy in found] == [*SPECS] * 4
    assert len(met) >= len(found)
    assert set(met) == {1}


def test_threads_simulate_what_one_does():
    trace = Trace([0.0, 0.0, 0.01, 0.02], prompt_len=[500, 20, 30, 7], output_len=[9, 3, 5, 1])
    alone = [qs.simulate(trace, spec).requests.tobytes() for spec in SPECS]

    with ThreadPoolExecutor(4) as pool:
        runs = pool.map(lambda spec: qs.simulate(trace, spec).requests.tobytes(), SPECS * 4)
        assert list(runs) == alone * 4
