"""The command line: one file per verb, imported when the verb is used."""

import sys

from cyclopts import App, CycloptsError

from queuesmith._version import __version__
from queuesmith.cli.output import reader_may_leave
from queuesmith.errors import QueuesmithError

DONE, NO, WRONG, INTERRUPTED = 0, 1, 2, 130

app = App(
    name="queuesmith",
    version=__version__,
    help="Which LLM request should run next? Replay traffic through a simulated vLLM and compare.",
    help_format="plaintext",
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
app.command(
    "queuesmith.cli.compare:compare",
    name="compare",
    help="Replay a trace under many policies and loads; say which policy to run.",
)
app.command(
    "queuesmith.cli.plan:plan",
    name="plan",
    help="Find the rate up to which each policy holds an SLO; say which carries most.",
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
app.command(
    "queuesmith.cli.traces:traces",
    name="traces",
    help="List, describe, fetch and import traffic, and fit models to it.",
)
app.command(
    "queuesmith.cli.study:study",
    name="study",
    help="Find where a ranking of policies holds and where it flips.",
)
app.command(
    "queuesmith.cli.ab:ab",
    name="ab",
    help="Measure a policy against vLLM as it is, on the same requests.",
)
app.command(
    "queuesmith.cli.evolve:evolve",
    name="evolve",
    help="Breed policies for a score, beside random search with the same budget.",
)
app.command(
    "queuesmith.cli.calibrate:calibrate",
    name="calibrate",
    help="Fit the step times of your own engine; write a file for --engine.",
)
app.command(
    "queuesmith.cli.serve:serve",
    name="serve",
    help="Start a vLLM server whose requests a policy orders.",
)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 the answer is no, 2 bad usage or input."""
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    status = None
    try:
        with reader_may_leave():
            status = app(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        verb = " ".join(["queuesmith", *(error.command_chain or ())])
        return _complain(f"{' '.join(str(error).split())} See `{verb} --help`.")
    except QueuesmithError as error:
        return _complain(str(error))
    except KeyboardInterrupt:
        print("interrupted; nothing half-written is left", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        what = error.strerror or str(error)
        return _complain(f"{error.filename}: {what}" if error.filename else what)
    return status if isinstance(status, int) else DONE


def _complain(message: str) -> int:
    print(f"error: {' '.join(message.splitlines())}", file=sys.stderr)
    return WRONG
