"""``queuesmith serve``: start a vLLM server whose requests a policy orders."""

import json
import sys
from typing import Annotated

from cyclopts import Parameter

SCHEMA = "queuesmith.serve/1"


def serve(
    model: str,
    /,
    *vllm_options: Annotated[str, Parameter(allow_leading_hyphen=True)],
    policy: str,
    shadow: Annotated[bool, Parameter(negative=())] = False,
    max_wait: float = 60.0,
    time_limit: float = 0.005,
    max_faults: int = 100,
    record: str = "",
    allow_untested: Annotated[bool, Parameter(negative=())] = False,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    json_: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int | None:
    """Start a vLLM server whose requests a policy orders.

    Parameters
    ----------
    model
        Name or folder, as vLLM takes it.
    vllm_options
        Any options of `vllm serve`, passed on as they are.
    policy
        A policy's name, file, or name(PARAM=value).
    shadow
        Order nothing; count and record what the policy would have done.
    max_wait
        Seconds without a token after which a request goes first, whatever the policy says.
    time_limit
        Seconds of CPU that the policy may take per step; more is a fault.
    max_faults
        Faults after which the policy is switched off.
    record
        File to append decisions to that differ from first come, first served.
    allow_untested
        Run with a version of vLLM that this was not tested with.
    dry_run
        Print the command instead of running it.
    json_
        Print the command as one JSON document; with --dry-run.
    """
    from queuesmith.deploy.options import PluginOptions
    from queuesmith.deploy.plugin import check_version
    from queuesmith.deploy.serve import build_command, start
    from queuesmith.documents import hide_secrets
    from queuesmith.errors import ConfigError

    options = PluginOptions(
        policy=policy,
        shadow=shadow,
        max_wait=max_wait,
        time_limit=time_limit,
        max_faults=max_faults,
        record=record,
        allow_untested=allow_untested,
    )
    command = build_command(model, options, vllm_options)
    if not dry_run:
        if json_:
            raise ConfigError("--json goes with --dry-run; a running server prints its own log")
        return start(command, allow_untested=allow_untested)
    try:
        check_version(allow_untested)
    except ConfigError as error:
        print(f"note: {error}", file=sys.stderr)
    if json_:
        document = {
            "schema": SCHEMA,
            "command": hide_secrets(command.arguments),
            "environment": command.environment,
            "address": command.address,
        }
        print(json.dumps(document, indent=1))
    else:
        print(command)
    return None
