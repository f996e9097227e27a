"""Open-loop replay of a workload against a running server; the only module that opens sockets.

Requests are sent when they arrived, whether or not earlier ones are answered, as token ids of the
exact length over streaming ``/v1/completions``. One thread waits for each request in flight, with
`http.client` of the standard library: it checks what the server sends, needs no dependency, and a
server that can be kept busy by a few hundred streams needs no more threads than that.

Nothing that goes wrong is dropped: a request that failed says how.
"""

import http.client
import json
import math
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from queuesmith.deploy.answer import Answer, Failed
from queuesmith.deploy.prompts import request_body
from queuesmith.engine.workload import Workload
from queuesmith.errors import ConfigError

#: Seconds before its time at which a request's prompt is made and its connection opened.
LEAD = 0.2
#: Requests in a row that could not even connect, after which the server counts as gone.
GONE_AFTER = 20

GONE = "not sent: the server was gone"


@dataclass(frozen=True)
class Served:
    """What became of one request; times are seconds on the clock of the trace.

    Attributes
    ----------
    row : int
        In the workload.
    arrival_time : float
        When it was due.
    sent : float
        When it was sent; NaN if it never was.
    first_token_ts, last_token_ts : float
        NaN without a token.
    num_output_tokens : int
    error : str
        What went wrong; empty if all tokens came.
    """

    row: int
    arrival_time: float
    sent: float = math.nan
    first_token_ts: float = math.nan
    last_token_ts: float = math.nan
    num_output_tokens: int = 0
    error: str = ""

    @property
    def ttft(self) -> float:
        """Seconds from when the request was due, so that a late client hides nothing."""
        return self.first_token_ts - self.arrival_time

    @property
    def lateness(self) -> float:
        """Seconds between when it was due and when it was sent."""
        return self.sent - self.arrival_time


class Server:
    """Where requests go.

    Parameters
    ----------
    base_url : str
        Such as ``http://localhost:8000``.
    timeout : float
        Seconds without a new token after which a request has failed.

    Raises
    ------
    ConfigError
        If the address cannot be read.
    """

    def __init__(self, base_url: str, timeout: float = 600.0) -> None:
        try:
            parts = urlsplit(base_url)
            self.host, self.port = parts.hostname, parts.port
        except ValueError:
            self.host, self.port = None, None
        if not self.host or parts.scheme not in ("http", "https") or parts.query:
            raise ConfigError(
                f"a server's address must look like http://localhost:8000, got {base_url!r}"
            )
        if not timeout > 0:
            raise ConfigError(f"timeout must be positive seconds, got {timeout:g}")
        self.base_url = base_url.rstrip("/")
        self.timeout = timeout
        self._secure = parts.scheme == "https"
        self._path = parts.path.rstrip("/").removesuffix("/v1")

    def connect(self, timeout: float | None = None) -> http.client.HTTPConnection:
        """Open a connection."""
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        assert self.host is not None
        connection = kind(self.host, self.port, timeout=timeout or self.timeout)
        connection.connect()
        return connection

    def get(self, path: str, timeout: float = 10.0) -> tuple[int, str]:
        """Return status and text of a page.

        Raises
        ------
        OSError, http.client.HTTPException
        """
        connection = self.connect(timeout)
        try:
            connection.request("GET", self._path + path)
            response = connection.getresponse()
            return response.status, response.read(1 << 24).decode(errors="replace")
        finally:
            connection.close()

    def post(self, connection: http.client.HTTPConnection, body: bytes) -> http.client.HTTPResponse:
        """Send a completion request; return the response, its body yet to be read."""
        headers = {"Content-Type": "application/json"}
        connection.request("POST", f"{self._path}/v1/completions", body, headers)
        return connection.getresponse()

    def is_ready(self) -> bool:
        """Tell whether the server answers its health check."""
        try:
            return self.get("/health")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def find_model(self, wanted: str | None = None) -> str:
        """Return the model that is served.

        Raises
        ------
        ConfigError
            If nobody answers, or the model that is wanted is not among those served.
        """
        try:
            status, text = self.get("/v1/models")
            names = [str(one["id"]) for one in json.loads(text)["data"]] if status == 200 else []
        except OSError as error:
            raise ConfigError(
                f"no server answers at {self.base_url}: {reason_of(error)}; start one with "
                "`queuesmith serve`, or look at the address"
            ) from None
        except (http.client.HTTPException, ValueError, KeyError, TypeError):
            status, names = 0, []
        if not names:
            raise ConfigError(
                f"{self.base_url}/v1/models names no model"
                + (f" (HTTP {status})" if status not in (0, 200) else "")
                + "; give the address of an OpenAI-compatible server"
            )
        if wanted is not None and wanted not in names:
            raise ConfigError(
                f"{self.base_url} does not serve {wanted!r} but {', '.join(names)}; give one of "
                "these with --served-model"
            )
        return wanted or names[0]

    def metrics(self) -> dict[str, float]:
        """Return Prometheus metrics, each summed over its labels; none if there are none."""
        try:
            status, text = self.get("/metrics")
        except (OSError, http.client.HTTPException):
            return {}
        found: dict[str, float] = {}
        for line in text.splitlines() if status == 200 else []:
            sample = re.match(r"([A-Za-z_:][\w:]*)(?:\{.*\})? (\S+)", line)
            if sample:
                try:
                    found[sample[1]] = found.get(sample[1], 0.0) + float(sample[2])
                except ValueError:
                    continue
        return found


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def reason_of(error: Exception) -> str:
    """Say in a few words what went wrong with a connection."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return f"{type(error).__name__}: {error}".rstrip(": ")


def replay(
    server: Server,
    model: str,
    workload: Workload,
    *,
    seed: int = 0,
    progress: Callable[[], None] | None = None,
) -> list[Served]:
    """Send every request at its time and wait for all of them.

    Parameters
    ----------
    server : Server
    model : str
        As `Server.find_model` returns it.
    workload : Workload
    seed : int
        Of the prompts. Give each replay against one server its own, or prefixes are cached.
    progress : callable, optional
        Called whenever a request has ended.

    Returns
    -------
    list of Served
        One for each request, in order of arrival.
    """
    run = _Replay(server, model, workload, seed, progress)
    threads = []
    arrivals = workload.trace.arrival_time
    for row, arrival in enumerate(arrivals.tolist()):
        _sleep_until(run.start + arrival - LEAD)
        if run.is_gone():
            run.served[row] = Served(row, arrival, error=GONE)
            continue
        thread = threading.Thread(target=run.serve, args=(row,), daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more threads
            run.served[row] = Served(row, arrival, error=f"not sent: {error}")
            continue
        threads.append(thread)
    for thread in threads:
        thread.join()
    return [run.served[row] for row in range(len(arrivals))]


class _Replay:
    """What the threads of one replay share."""

    def __init__(
        self,
        server: Server,
        model: str,
        workload: Workload,
        seed: int,
        progress: Callable[[], None] | None,
    ) -> None:
        self.server, self.model, self.workload, self.seed = server, model, workload, seed
        self.served: dict[int, Served] = {}
        self.start = time.perf_counter() + LEAD - float(workload.trace.arrival_time[0])
        self._progress = progress
        self._lock = threading.Lock()
        self._refused = 0

    def is_gone(self) -> bool:
        """Tell whether so many requests could not connect that it is no use to send more."""
        return self._refused >= GONE_AFTER

    def serve(self, row: int) -> None:
        """Send one request at its time and read its answer."""
        arrival = float(self.workload.trace.arrival_time[row])
        answer = Answer(int(self.workload.output_len[row]), self.server.timeout)
        sent, error = math.nan, ""
        try:
            body = json.dumps(request_body(self.workload, row, self.model, self.seed)).encode()
            connection = self._connect()
            try:
                _sleep_until(self.start + arrival)
                sent = time.perf_counter()
                answer.read(self.server.post(connection, body))
            finally:
                connection.close()
        except Failed as failure:
            error = str(failure)
        except (OSError, http.client.HTTPException, ValueError) as failure:
            error = reason_of(failure)
            if answer.num_tokens:
                error += f" after {answer.num_tokens} of {answer.num_wanted} tokens"
        done = Served(
            row,
            arrival,
            sent - self.start,
            answer.first - self.start,
            answer.last - self.start,
            answer.num_tokens,
            error,
        )
        with self._lock:
            self.served[row] = done
            if self._progress is not None:
                self._progress()

    def _connect(self) -> http.client.HTTPConnection:
        try:
            connection = self.server.connect()
        except OSError as error:
            with self._lock:
                self._refused += 1
            raise Failed(f"cannot connect: {reason_of(error)}") from None
        with self._lock:
            self._refused = 0
        return connection


def _sleep_until(moment: float) -> None:
    while (left := moment - time.perf_counter()) > 0:
        time.sleep(left)
