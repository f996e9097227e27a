"""What a run would cost, from a few simulations of its own traffic."""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from queuesmith.engine.compile import compile_policy
from queuesmith.evaluation.judge import REFERENCE
from queuesmith.evolve.config import EvolveConfig
from queuesmith.evolve.loop import TRACKS
from queuesmith.evolve.proposers import make_control, make_proposer
from queuesmith.evolve.scoring.traffic import freeze_windows, tuning_traffic
from queuesmith.policies import get_policy
from queuesmith.policies.policy import load_text

#: CPU seconds to check, fork for and answer for a candidate, beside compiling and simulating.
OVERHEAD = 0.02


def estimate(config: EvolveConfig, workers: int) -> dict[str, Any]:
    """Estimate evaluations, CPU seconds and what an LLM would cost.

    Nothing is stopped early in an estimate, and survivors are counted as simulated again in every
    generation, so that a run is rather cheaper.
    """
    proposers = [(share, make_proposer(share)) for share in config.proposers]
    with tempfile.TemporaryDirectory() as folder:
        windows = freeze_windows(config, Path(folder))
        traffic = tuning_traffic(config, windows)
    names = list(dict.fromkeys([REFERENCE, *config.search.classics]))
    start = time.process_time()
    for name in names:
        traffic.measure(get_policy(name))
    simulate = (time.process_time() - start) / len(names) / len(traffic.cells)

    sample = make_control(config).propose([], 20, np.random.default_rng(0))[-5:]
    start = time.process_time()
    for place, proposal in enumerate(sample):  # a mark, so that no cache knows the text
        text = f"{proposal.text}\n# {time.time_ns()} {place}\n"
        compile_policy(load_text("estimate", text, Path("estimate.py")))
    compiling = (time.process_time() - start) / len(sample) + OVERHEAD

    search = config.search
    per_generation = sum(
        min(config.windows.per_generation, len(source.parts.get("tuning", ())))
        for source in windows.sources
    ) * len(config.loads)
    num_tracks = len(TRACKS) * len(config.seeds)
    evaluations = num_tracks * config.evaluations
    generations = num_tracks * min(search.generations, -(-config.evaluations // search.children))
    again = generations * search.islands * search.depth
    simulations = (evaluations + again) * per_generation
    cpu_seconds = (evaluations + again) * compiling + simulations * simulate
    llm = {"llm_calls": 0.0, "llm_tokens": 0.0, "llm_money": 0.0}
    for share, proposer in proposers:
        if hasattr(proposer, "estimate"):
            asked = round(share.share * len(config.seeds) * config.evaluations)
            for name, value in proposer.estimate(asked).items():
                llm[name] += float(value)
    budget = config.budget
    capped = {name: min(value, getattr(budget, name) or value) for name, value in llm.items()}
    return {
        "schema": "queuesmith.evolve.estimate/1",
        "name": config.name,
        "evaluations": evaluations,
        "simulations": simulations,
        "cpu_seconds": cpu_seconds,
        "cpu_seconds_per_evaluation": compiling + per_generation * simulate,
        "wall_seconds": cpu_seconds / workers,
        "llm": capped,
    }
