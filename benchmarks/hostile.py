"""What hostile policies cost a real vLLM server, and whether it answers everybody.

Run in the environment that has vLLM, for all hostile policies or for those that are named:

    requirements/with_vllm.sh python benchmarks/hostile.py [--requests 120] [name ...]

A server with a tiny model is started on the CPU for stock vLLM and for each policy in `HOSTILE`,
and gets the same requests. Each must be answered in full and ``/health`` be 200 at the end.
`schedule` may take at most 50 ms of CPU time longer in its slowest step than stock vLLM's; CPU
time, since a busy machine makes wall time longer under any policy. Policies that `get_policy`
refuses never reach a server, and are listed as refused. The exit status is 1 if any of this does
not hold.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "vllm"))

from queuesmith.deploy import plugin
from queuesmith.deploy.local_server import LocalServer
from queuesmith.errors import PolicyError
from queuesmith.policies import get_policy

MOST_MS = 50.0
TIMES = "HOSTILE_TIMES"  # the environment variable that names the file of step times
FCFS = "def waiting_key(request, engine):\n    return request.arrival_time\n"


def key(*lines, result="request.arrival_time + x", before="", hook="waiting_key"):
    """Return the text of a policy whose hook runs these lines."""
    body = "".join(f"    {line}\n" for line in lines)
    own = "" if hook == "waiting_key" else FCFS
    return f"{before}{own}\n\ndef {hook}(request, engine):\n{body}    return {result}\n"


SQUARES = (
    "x = 3",
    "if request.num_prompt_tokens == 313:",
    "    x = request.num_prompt_tokens",
    *["    x = x * x"] * 60,
)
LOOP = ("x = 1.0", "for i in range(9000):", "    x = x * 1.0000001 + 0.5")
HOSTILE = {
    "squares": key(*SQUARES),
    "squares in hold": key(*SQUARES, result="x < 0", hook="hold"),
    "squares in victim_key": key(*SQUARES, hook="victim_key"),
    "long loop": key(*LOOP, result="x + engine.now"),
    "long loop in admit": key(*LOOP, result="x > 0.0", hook="admit"),
    "40 KB in a loop": key(
        "x = 1.0",
        "for i in range(10000):",
        *["    x = x * 1.0000001 + 0.5"] * 1400,
    ),
    "division by zero": key("x = 1 // (request.num_prompt_tokens - 313)"),
    "huge whole number": key("x = request.num_prompt_tokens * 9223372036854775807"),
    "no number": key("x = 1e308 * 10.0 - 1e308 * 10.0"),
    "no end": key("x = 0", "while x < 1:", "    x = x * 1"),
    "recursion": key("x = waiting_key(request, engine)"),
    "nested": key("x = " + "(" * 900 + "1" + ")" * 900),
}


def make_scheduler(vllm_config, **arguments):
    """Build vLLM's scheduler, with the policy if one is named, and note the time of each step."""
    if os.environ.get("QUEUESMITH_POLICY"):
        scheduler = plugin.make_scheduler(vllm_config, **arguments)
    else:
        scheduler = plugin.scheduler_class(vllm_config)(vllm_config=vllm_config, **arguments)
    plain = scheduler.schedule
    file = Path(os.environ[TIMES]).open("a", buffering=1)  # noqa: SIM115

    def schedule(*args, **kwargs):
        begun = time.thread_time()
        output = plain(*args, **kwargs)
        file.write(f"{(time.thread_time() - begun) * 1e3}\n")
        return output

    scheduler.schedule = schedule
    return scheduler


def measure(model, text, num_requests, folder):
    """Serve under a policy, or as vLLM does; return what came of it."""
    folder.mkdir()
    times = folder / "times"
    (folder / "metrics").mkdir()
    environment = {
        TIMES: str(times),
        "PYTHONPATH": f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}",
        "PROMETHEUS_MULTIPROC_DIR": str(folder / "metrics"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
    }
    if text is not None:
        policy = folder / "hostile.py"
        policy.write_text(text)
        environment["QUEUESMITH_POLICY"] = str(policy)
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    command += ["--host", "127.0.0.1", "--port", "{port}", "--dtype", "float32", "--enforce-eager"]
    command += ["--max-num-seqs", "4", "--max-model-len", "512", "--block-size", "32"]
    command += ["--max-num-batched-tokens", "512", "--scheduler-cls", "hostile.make_scheduler"]
    with LocalServer(model, "", environment, folder, 120.0, command) as local:
        server = local.server
        name = server.find_model()

        def complete(row):
            body = {"model": name, "prompt": [7 + row] * (313 if row % 7 == 3 else 50)}
            body |= {"max_tokens": 8, "ignore_eos": True}
            connection = server.connect(120.0)
            try:
                answer = json.load(server.post(connection, json.dumps(body).encode()))
                return answer["usage"]["completion_tokens"] == 8
            except (OSError, KeyError, ValueError):
                return False
            finally:
                connection.close()

        with ThreadPoolExecutor(num_requests) as pool:
            num_answered = sum(pool.map(complete, range(num_requests)))
        healthy = server.get("/health")[0] == 200
        faults = sum(
            value
            for metric, value in server.metrics().items()
            if metric.startswith("queuesmith_faults_total")
        )
    slowest = max(float(line) for line in times.read_text().split())
    return num_answered, healthy, int(faults), slowest


def main():
    """Measure, print, and return the exit status."""
    from tiny_model import write_tiny_model

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="name", help=", ".join(HOSTILE))
    parser.add_argument("--requests", type=int, default=120)
    options = parser.parse_args()
    if unknown := set(options.names) - set(HOSTILE):
        parser.error(f"no such policy: {', '.join(sorted(unknown))}")
    if options.requests < 1:
        parser.error("--requests must be at least 1")
    failed = False
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        model = str(write_tiny_model(place / "model"))
        print(
            "| policy | answered | faults | slowest `schedule`, ms of CPU time | |\n"
            "|---|---|---|---|---|"
        )
        own = None
        for number, name in enumerate(["stock vLLM", *(options.names or HOSTILE)]):
            text = HOSTILE.get(name)
            if text is not None:
                source = place / "asked.py"
                source.write_text(text)
                try:
                    get_policy(str(source))
                except PolicyError as error:
                    print(
                        f"| {name} | refused | | | {str(error).partition(': ')[2][:90]} |",
                        flush=True,
                    )
                    continue
            answered, healthy, faults, slowest = measure(
                model, text, options.requests, place / str(number)
            )
            own = slowest if own is None else own
            good = answered == options.requests and healthy and slowest - own < MOST_MS
            failed |= not good
            print(
                f"| {name} | {answered} of {options.requests} | {faults} | {slowest:.1f} "
                f"| {'' if good else 'FAILED'} |",
                flush=True,
            )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
