"""GEPA searches, queuesmith judges: reflective search over the text of a policy file.

Needs `pip install gepa`. The model here is a script that gives four answers, so that the example
runs without a key; put the name of a model or any function from prompt to text in its place.
"""

from pathlib import Path

from gepa.optimize_anything import (
    EngineConfig,
    GEPAConfig,
    ReflectionConfig,
    TrackingConfig,
    optimize_anything,
)

from queuesmith.evolve.export import evaluate

# A small configuration of its own; "quick" and "full" come with the package.
CONFIG = """
loads = ["knee", "heavy"]

[[source]]
file = "azure_2023_conv@model"
num_requests = 10_000

[windows]
num_windows = 4
window_len = 400
per_generation = 4
"""

FCFS = """
def waiting_key(request, engine):
    return request.arrival_time
"""
SHORTEST_FIRST = """
def waiting_key(request, engine):
    return request.num_uncached_tokens
"""
NOSY = """
import os


def waiting_key(request, engine):
    return len(os.environ)
"""
WITHIN_BACKLOG = '''
"""Shortest first, until somebody has waited as long as the backlog would have made anybody wait."""

PATIENCE = 0.7


def waiting_key(request, engine):
    wait = engine.now - request.arrival_time
    if wait > PATIENCE * engine.peak_backlog_time:
        return -wait
    return request.num_uncached_tokens
'''
ANSWERS = iter([SHORTEST_FIRST, "Sorry, I cannot help with that.", NOSY, WITHIN_BACKLOG])

Path("small.toml").write_text(CONFIG)


def scripted_model(prompt):
    return f"```\n{next(ANSWERS, FCFS)}\n```"


def judge(text):
    """Return what GEPA maximises, and what it shows the model beside the policy."""
    Path("candidate.py").write_text(text)
    answer = evaluate("candidate.py", "small.toml")
    print(f"{answer['combined_score']:>+10.3f}  {answer['error'] or answer['status']}")
    return answer["combined_score"], answer


class Quiet:
    def log(self, message):
        pass


print("  combined  status")
result = optimize_anything(
    FCFS,
    evaluator=judge,
    objective="A scheduling policy with a low mean time to first token and no worse a tail.",
    config=GEPAConfig(
        engine=EngineConfig(max_metric_calls=9, parallel=False, cache_evaluation=True),
        reflection=ReflectionConfig(reflection_lm=scripted_model),
        tracking=TrackingConfig(logger=Quiet()),
    ),
)
print("\nbest:")
print(result.best_candidate.strip())
