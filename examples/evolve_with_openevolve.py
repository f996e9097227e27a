"""OpenEvolve searches, queuesmith judges: this file is its evaluator as well.

Needs `pip install openevolve`. The model here is a local server that gives three answers, so that
the example runs without a key; name your endpoint and model in their place.
"""

import json
import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from queuesmith.evolve.export import evaluate as judge

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
ANSWERS = iter([SHORTEST_FIRST, NOSY, WITHIN_BACKLOG])


def evaluate(path):
    """Judge a program; OpenEvolve calls this in processes of its own, and wants numbers."""
    answer = judge(path, "small.toml")
    return {name: value for name, value in answer.items() if isinstance(value, (int, float))}


class ScriptedModel(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        message = {"role": "assistant", "content": f"```python\n{next(ANSWERS, FCFS)}\n```"}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = json.dumps({"id": "0", "object": "chat.completion", "choices": [choice]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def main():
    from openevolve import run_evolution
    from openevolve.config import Config, LLMModelConfig

    server = ThreadingHTTPServer(("127.0.0.1", 0), ScriptedModel)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Path("small.toml").write_text(CONFIG)
    Path("start.py").write_text(FCFS)

    config = Config()
    url = f"http://127.0.0.1:{server.server_port}/v1"
    config.llm.models = [LLMModelConfig(name="scripted", api_base=url, api_key="none")]
    config.llm.update_model_params({"retries": 0, "timeout": 60})
    config.diff_based_evolution = False  # whole files: whoever knows the contract may rewrite all
    config.evaluator.cascade_evaluation = False
    config.evaluator.parallel_evaluations = 1
    config.language = "python"
    config.log_level = "ERROR"
    result = run_evolution(
        "start.py",
        evaluator=__file__,
        config=config,
        iterations=3,
        output_dir="run",
        cleanup=False,
    )
    print(f"combined score {result.best_score:+.3f}, {result.metrics['tail_violations']:.0f} tails")
    print(result.best_code.strip())
    server.shutdown()
    server.server_close()


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    main()
