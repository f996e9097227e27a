"""The command line: one file per verb, imported when the verb is used."""

import contextlib
import io
import os
import signal
import sys
import traceback

from cyclopts import App, CycloptsError

from queuesmith._version import __version__
from queuesmith.cli.output import reader_may_leave
from queuesmith.documents import printable
from queuesmith.errors import QueuesmithError

DONE, NO, WRONG, FAULT, INTERRUPTED = 0, 1, 2, 70, 130
#: Raise what should never have happened, instead of saying so in one line.
TRACEBACK_VARIABLE = "QUEUESMITH_TRACEBACK"
#: Characters of an error that are shown.
MAX_MESSAGE = 2_000
_STOPS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if os.name == "posix" else []))

app = App(
    name="queuesmith",
    version=__version__,
    help="Which LLM request should run next? Replay traffic through a simulated vLLM and compare.",
    help_format="plaintext",
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
app.command(
    "queuesmith.cli.recommend:recommend",
    name="recommend",
    help="Say what to run on the traffic of a log, and how to try it without risk.",
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
    "queuesmith.cli.check:check",
    name="check",
    help="Set simulated latencies against those of a log; say how far to trust them.",
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
    """Run the command line and exit: 0 done, 1 the answer is no, 2 bad usage or input.

    Also 130 after Ctrl-C, 143 after SIGTERM, and 70 after a fault of this package itself.
    """
    _open_streams()
    received = _catch_stops()
    status = run(arguments)
    try:
        sys.stdout.flush()
    except OSError as error:  # a full disk, perhaps; the interpreter would try again and complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = status or _complain(f"standard output: {error.strerror or error}")
    sys.exit(128 + received[0] if received and status == INTERRUPTED else status)


def _open_streams() -> None:
    """Have streams that take any text, also where one is closed or of a narrow encoding."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:  # closed: what is opened next must not take its number
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _catch_stops() -> list[int]:
    """Let the first signal to stop interrupt as Ctrl-C does; a second one ends the process."""
    received: list[int] = []

    def stop(number: int, frame: object) -> None:
        for each in ours:
            signal.signal(each, signal.SIG_DFL)
        received.append(number)
        raise KeyboardInterrupt

    ours = [each for each in _STOPS if signal.getsignal(each) is not signal.SIG_IGN]  # by nohup
    for each in ours:
        signal.signal(each, stop)
    return received


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
    except MemoryError:
        return _complain(
            "there is not enough memory for this; take fewer requests, windows or workers"
        )
    except OSError as error:
        what = error.strerror or str(error)
        return _complain(f"{error.filename}: {what}" if error.filename else what)
    except Exception as error:
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
        frame = traceback.extract_tb(error.__traceback__)[-1]
        _complain(
            f"this is a fault of queuesmith: {type(error).__name__}: {error} "
            f"({os.path.basename(frame.filename)}:{frame.lineno}); please report it, with what "
            f"{TRACEBACK_VARIABLE}=1 prints"
        )
        return FAULT
    return status if isinstance(status, int) else DONE


def _complain(message: str) -> int:
    if len(message) > MAX_MESSAGE:  # it repeats what it was given
        message = f"{message[: MAX_MESSAGE // 2]} ... {message[-MAX_MESSAGE // 2 :]}"
    with contextlib.suppress(OSError):  # nobody reads it
        print(f"error: {printable(' '.join(message.splitlines()))}", file=sys.stderr)
    return WRONG
