"""Draw traces from workload models: numbers fitted to real traffic, shipped with the package.

A model is one or more clients (:mod:`queuesmith.traces.models.client`), each with arrivals and
lengths of its own, some with conversations (:mod:`queuesmith.traces.models.sessions`), merged by
time of arrival.

:mod:`queuesmith.traces.fit` makes the files.
"""

import hashlib
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from queuesmith.documents import read_file
from queuesmith.errors import ConfigError, TraceError, did_you_mean
from queuesmith.traces.models.client import HOUR, HOURS, Client, Start
from queuesmith.traces.models.model_file import format_clients, parse_clients
from queuesmith.traces.models.sessions import WARM_UP, Draw, name_blocks
from queuesmith.traces.trace import Origin, Trace


@dataclass(frozen=True, eq=False)
class WorkloadModel:
    """Parameters of one workload.

    Attributes
    ----------
    name : str
    clients : tuple of Client
        At least one; a model with conversations has just one.
    version : str
        Of the parameters: the start of a hash.
    fit : dict
        To what, and by which command, the parameters were fitted.
    """

    name: str
    clients: tuple[Client, ...]
    version: str = ""
    fit: dict[str, Any] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Mean requests per second of all clients."""
        return sum(client.request_rate for client in self.clients)

    def sample(self, num_requests: int, seed: int = 0) -> Trace:
        """Draw a trace that starts at 0 s.

        Parameters
        ----------
        num_requests : int
            At least 1.
        seed : int
            Equal seeds give equal bytes, and a longer draw begins with the shorter one.

        Raises
        ------
        ConfigError
            If `num_requests` is below 1 or `seed` is negative.
        """
        if num_requests < 1:
            raise ConfigError(f"num_requests must be at least 1, got {num_requests}")
        if seed < 0:
            raise ConfigError(f"seed must be at least 0, got {seed}")
        draw, client = _merge(self._draw_clients(num_requests, seed), num_requests)
        source = self.fit.get("source", "a trace")
        named = source if isinstance(source, str) else ", ".join(source)
        note = f"drawn with seed {seed} from a model fitted to {named}"
        turns: dict[str, Any] = {}
        sessions = self.clients[0].sessions
        if sessions is not None and draw.session is not None and draw.turn is not None:
            turns = {
                "session": _renumber(draw.session),
                "turn": draw.turn,
                "block_hashes": name_blocks(draw.prompt_len, draw.session, draw.turn, sessions),
            }
        return Trace(
            draw.arrival_time - draw.arrival_time[0],
            draw.prompt_len,
            draw.output_len,
            client=client if len(self.clients) > 1 else None,
            origin=Origin(
                "modelled", f"{self.name}@model", reader=f"model {self.version}", notes=(note,)
            ),
            **turns,
        )

    def _draw_clients(self, num_requests: int, seed: int) -> list[Draw]:
        """Draw of every client at least what belongs to the first requests of all."""
        place, *seeds = np.random.SeedSequence(seed).spawn(1 + len(self.clients))
        starts = self._starts(np.random.default_rng(place))
        warm_up = sum(WARM_UP for client in self.clients if client.sessions is not None)
        seconds = 1.05 * num_requests / self.rate + warm_up
        ahead = [int(seconds * client.rate) + 20 for client in self.clients]
        draws: list[Draw | None] = [None] * len(self.clients)
        end = np.inf
        while True:
            for index, client in enumerate(self.clients):
                draw = draws[index]
                if draw is None or draw.complete_until < end:
                    draws[index] = client.draw(ahead[index], seeds[index], starts[index])
                    ahead[index] *= 2
            drawn = [draw for draw in draws if draw is not None]
            times = np.concatenate([draw.arrival_time for draw in drawn])
            # The last request wanted comes no later than the last of those at hand.
            enough = len(times) >= num_requests
            end = float(np.partition(times, num_requests - 1)[num_requests - 1]) if enough else end
            if enough and all(draw.complete_until >= end for draw in drawn):
                return drawn

    def _starts(self, rng: np.random.Generator) -> list[Start]:
        """Begin with a request chosen evenly among all: its hour, and its client."""
        rates = np.array(
            [[client.rate_at(hour * HOUR) for client in self.clients] for hour in range(HOURS)]
        )
        chosen = int(np.searchsorted(np.cumsum(rates), rng.random() * rates.sum(), "right"))
        hour, first = divmod(min(chosen, rates.size - 1), len(self.clients))
        time_of_day = HOUR * (hour + rng.random())
        return [Start(time_of_day, index == first) for index in range(len(self.clients))]


def _merge(draws: list[Draw], num_requests: int) -> tuple[Draw, NDArray[np.int64]]:
    """Return the first requests of all clients, and whose each is."""
    client = np.repeat(np.arange(len(draws)), [len(draw.arrival_time) for draw in draws])
    arrival_time = np.concatenate([draw.arrival_time for draw in draws])
    first = np.argsort(arrival_time, kind="stable")[:num_requests]
    session, turn = draws[0].session, draws[0].turn
    merged = Draw(
        arrival_time[first],
        np.concatenate([draw.prompt_len for draw in draws])[first],
        np.concatenate([draw.output_len for draw in draws])[first],
        float(arrival_time[first[-1]]),
        None if session is None else session[first],
        None if turn is None else turn[first],
    )
    return merged, client[first]


def _renumber(names: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count names from 0 in order of first appearance."""
    _, first_row, place = np.unique(names, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first_row))[place])


def model_names() -> list[str]:
    """List the workload models in the package."""
    folder = resources.files("queuesmith.traces") / "models"
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    )


def load_model(name: str) -> WorkloadModel:
    """Load a workload model of the package by name, or one of your own by its ``.toml`` path.

    Raises
    ------
    TraceError
        If there is none of that name, or the file cannot be read.
    """
    if name.endswith(".toml"):
        try:
            return parse_model(read_file(Path(name)).decode("utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise TraceError(
                f"the model {name} cannot be read: {reason}; `queuesmith traces fit` writes one"
            ) from None
    known = model_names()
    if name not in known:
        raise TraceError(
            f"there is no workload model {name!r}.{did_you_mean(name, known)} "
            f"Known: {', '.join(known)}"
        )
    text = (resources.files("queuesmith.traces") / "models" / f"{name}.toml").read_text("utf-8")
    return parse_model(text)


def parse_model(text: str) -> WorkloadModel:
    """Make a model of the TOML text that `format_model` writes.

    Raises
    ------
    TraceError
        If the text is no workload model, or its numbers make no sense.
    """
    name, clients, fit = parse_clients(text)
    return WorkloadModel(name, clients, hashlib.sha256(text.encode()).hexdigest()[:12], fit)


def format_model(model: WorkloadModel) -> str:
    """Write a model as TOML text."""
    return format_clients(model.name, model.clients, model.fit)
