"""The command line: one file per verb, imported when the verb is used."""

import os
import sys

from cyclopts import App, CycloptsError

from queuesmith._version import __version__
from queuesmith.errors import QueuesmithError

DONE, NO, WRONG, INTERRUPTED = 0, 1, 2, 130

app = App(
    name="queuesmith",
    version=__version__,
    help="Which LLM request should run next? Replay traffic through a simulated vLLM and compare.",
    help_format="plaintext",
    result_action="return_value",
)
app.command(
    "queuesmith.cli.compare:compare",
    name="compare",
    help="Replay a trace under many policies and loads; say which policy to run.",
)
app.command(
    "queuesmith.cli.simulate:simulate",
    name="simulate",
    help="Replay a trace once; write a row per request and a timeline.",
)
app.command(
    "queuesmith.cli.policies:policies",
    name="policies",
    help="List the policies, explain one, or check a file of your own.",
)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 the answer is no, 2 bad usage or input."""
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    try:
        status = app(arguments, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except CycloptsError as error:
        return _complain(f"{' '.join(str(error).split())} See `queuesmith --help`.")
    except QueuesmithError as error:
        return _complain(str(error))
    except BrokenPipeError:  # whoever read our output has had enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt:
        print("interrupted; nothing half-written is left", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        what = error.strerror or str(error)
        return _complain(f"{error.filename}: {what}" if error.filename else what)
    return status if isinstance(status, int) else DONE


def _complain(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return WRONG
