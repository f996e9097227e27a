"""The command line that starts a vLLM server with a policy in front of its scheduler."""

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from queuesmith.deploy.options import SECTION, PluginOptions
from queuesmith.deploy.plugin import check_version
from queuesmith.documents import hide_secrets
from queuesmith.errors import ConfigError, PolicyError
from queuesmith.policies import Policy, get_policy

SCHEDULER = "queuesmith.deploy.plugin.make_scheduler"
#: Where vLLM's processes leave their metrics, so that its endpoint shows those of the scheduler.
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"


@dataclass(frozen=True)
class Command:
    """A server's command line, what its environment has besides, and where it will listen."""

    arguments: tuple[str, ...]
    environment: dict[str, str]
    address: str = ""

    def __str__(self) -> str:
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, shlex.join(hide_secrets(self.arguments))])


def build_command(model: str, options: PluginOptions, vllm_options: Sequence[str]) -> Command:
    """Return the command that serves `model` under a policy.

    Parameters
    ----------
    model : str
        Name or folder, as vLLM takes it.
    options : PluginOptions
    vllm_options : sequence of str
        Passed on to vLLM as they are.

    Raises
    ------
    PolicyError
        If the policy cannot be loaded, or cannot be deployed.
    ConfigError
        If an option contradicts the plug-in.
    """
    policy = get_policy(options.policy)
    if policy.oracle:
        raise PolicyError(
            f"policy {policy.name!r} reads the true output length, which nobody has in production; "
            "choose one that makes do with a prediction"
        )
    given = [*_from_config(vllm_options), *_given(vllm_options)]
    for name, value in given:
        if _names(name, "scheduler-cls") and value != SCHEDULER:
            raise ConfigError(
                f"--scheduler-cls {value[:80]} would take the plug-in's place; leave it out"
            )
        if _names(name, "scheduling-policy") and value != "fcfs":
            raise ConfigError(
                f"--scheduling-policy {value[:80]} orders requests as well; leave it out (the "
                "policy named priority does the same)"
            )
        if _names(name, "additional-config") and SECTION in value:
            raise ConfigError(
                f"--additional-config sets {SECTION} itself, which would win; give its "
                "settings as options of `queuesmith serve`"
            )
    arguments = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    arguments += ["--scheduler-cls", SCHEDULER, *_bundle(policy, dict(given)), *vllm_options]
    return Command(tuple(arguments), options.environment(), _address(dict(given)))


def start(command: Command, *, allow_untested: bool) -> int:
    """Run the server until it ends; return its exit status.

    Raises
    ------
    ConfigError
        If vLLM is missing or of a version that was not tested.
    """
    check_version(allow_untested)
    everywhere = ", on every network of this machine; --host 127.0.0.1 keeps it to itself"
    where = everywhere if command.address.startswith("0.0.0.0:") else ""
    print(f"note: vLLM will listen on {command.address}{where}", file=sys.stderr)
    environment = {**os.environ, **command.environment}
    with tempfile.TemporaryDirectory(prefix="queuesmith-metrics-") as folder:
        environment.setdefault(METRICS_FOLDER, folder)
        server = subprocess.Popen(command.arguments, env=environment)

        def pass_on(number: int, frame: object) -> None:
            server.send_signal(number)

        before = {number: signal.signal(number, pass_on) for number in _SIGNALS}
        try:
            return server.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def _given(vllm_options: Sequence[str]) -> list[tuple[str, str]]:
    """Return the options that are given, with their values as far as they follow."""
    given = []
    for place, word in enumerate(vllm_options):
        if not word.startswith("--"):
            continue
        name, equals, value = word[2:].partition("=")
        following = vllm_options[place + 1 : place + 2]
        if not equals and following and not following[0].startswith("--"):
            value = following[0]
        given.append((name.replace("_", "-"), value))
    return given


def _from_config(vllm_options: Sequence[str]) -> list[tuple[str, str]]:
    """Return what a file named by ``--config`` gives, however it is nested.

    vLLM puts it before the options of the command line, which have the last word.
    """
    given = []
    for name, path in _given(vllm_options):
        if not (_names(name, "config") and path):
            continue
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--config {path} cannot be read: {error}; check the path") from None
        plain = re.sub(r"(?m)(^|\s)#.*", "", text)
        given += [
            (key.replace("_", "-"), value.strip("\"' ")) for key, value in _PAIR.findall(plain)
        ]
    return given


#: A name and its value in YAML, a line each or in braces.
_PAIR = re.compile(r"""([A-Za-z][\w-]*)["']?\s*:\s*([^,}\n]*)""")


def _names(name: str, option: str) -> bool:
    """Tell whether vLLM could take a name for an option, whose end may be left out."""
    return len(name) >= _SHORTEST and option.startswith(name)


_SHORTEST = 4  # letters


def _address(given: dict[str, str]) -> str:
    """Return where vLLM will listen."""
    if path := given.get("uds"):
        return path
    return f"{given.get('host') or '0.0.0.0'}:{given.get('port') or 8000}"


def _bundle(policy: Policy, given: dict[str, str]) -> list[str]:
    """Return the options that a policy with engine settings needs."""
    options = []
    for name, value in policy.engine.items():
        if name == "instant_prefill":
            raise PolicyError(
                f"policy {policy.name!r} sets instant_prefill, which no real engine can do"
            )
        option = name.replace("_", "-")
        if option in given or f"no-{option}" in given:
            raise ConfigError(
                f"policy {policy.name!r} is a bundle that sets --{option} itself; leave it out, or "
                "choose a policy without engine settings"
            )
        options += _option(option, value)
    return options


def _option(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    return [f"--{name}", str(value)]
