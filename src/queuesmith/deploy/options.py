"""What an operator can set about the plug-in: by environment or vLLM's ``additional_config``."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from queuesmith.errors import ConfigError, did_you_mean

PREFIX = "QUEUESMITH_"
#: Under which ``--additional-config`` holds the same settings, spelled in lower case.
SECTION = "queuesmith"


@dataclass(frozen=True)
class PluginOptions:
    """Settings of the plug-in.

    Attributes
    ----------
    policy : str
        Name, path or ``name(PARAM=value)``.
    shadow : bool
        Order nothing; only count and record what the policy would have done.
    max_wait : float
        Seconds. Whoever has had no token for longer goes first, whatever the policy says.
    time_limit : float
        Seconds of CPU that the hooks may take in one step; more is a fault.
    max_faults : int
        After so many faults the policy is switched off.
    record : str
        File to which decisions that differ from FCFS are appended as JSON lines; empty for none.
    allow_untested : bool
        Run with a version of vLLM that this plug-in was not tested with.

    Raises
    ------
    ConfigError
        If a value is out of range.
    """

    policy: str
    shadow: bool = False
    max_wait: float = 60.0
    time_limit: float = 0.005
    max_faults: int = 100
    record: str = ""
    allow_untested: bool = False

    def __post_init__(self) -> None:
        if not self.policy:
            raise ConfigError("policy is empty; give a name such as sjf or the path of a file")
        for name in ("max_wait", "time_limit"):
            if not getattr(self, name) > 0:
                raise ConfigError(
                    f"{name} must be positive seconds (inf for no limit), got {getattr(self, name)}"
                )
        if self.max_faults < 1:
            raise ConfigError(f"max_faults must be at least 1, got {self.max_faults}")

    @classmethod
    def read(cls, environment: Mapping[str, str], additional: object = None) -> Self:
        """Read the environment, then vLLM's ``additional_config``, which has the last word.

        Parameters
        ----------
        environment : mapping of str to str
            ``QUEUESMITH_POLICY``, ``QUEUESMITH_MAX_WAIT`` and so on.
        additional : object
            vLLM's ``additional_config``; its ``"queuesmith"`` is read when it is a mapping.

        Raises
        ------
        ConfigError
            If no policy is named, a name is unknown or a value cannot be read.
        """
        names = [field.name for field in fields(cls)]
        given: dict[str, Any] = {
            name: environment[PREFIX + name.upper()]
            for name in names
            if environment.get(PREFIX + name.upper(), "") != ""
        }
        section = additional.get(SECTION) if isinstance(additional, Mapping) else None
        if section is not None and not isinstance(section, Mapping):
            raise ConfigError(
                f'additional_config["{SECTION}"] must be a mapping such as {{"policy": "sjf"}}, '
                f"got {section!r}"
            )
        for name, value in (section or {}).items():
            if name not in names:
                raise ConfigError(
                    f"there is no plug-in setting {name!r}.{did_you_mean(str(name), names)} "
                    f"Known: {', '.join(names)}"
                )
            given[name] = value
        if "policy" not in given:
            raise ConfigError(
                f"no policy is named: set {PREFIX}POLICY, or give vLLM --additional-config "
                f'\'{{"{SECTION}": {{"policy": "sjf"}}}}\''
            )
        types = {field.name: field.type for field in fields(cls)}
        return cls(**{name: _convert(name, types[name], value) for name, value in given.items()})

    def environment(self) -> dict[str, str]:
        """Return the variables that say the same; what is at its default is left out."""
        return {
            PREFIX + field.name.upper(): str(value)
            for field in fields(self)
            if (value := getattr(self, field.name)) != field.default
        }


def _convert(name: str, kind: Any, value: Any) -> Any:
    """Turn a value of the environment or of JSON into what the field holds."""
    if kind is str:
        return str(value)
    if kind is bool:
        known = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
        if str(value).lower() in known:
            return known[str(value).lower()]
        raise ConfigError(f"{name} must be true or false, got {value!r}")
    try:
        number = float(value)
        if kind is int and number != int(number):
            raise ValueError
    except (ValueError, TypeError, OverflowError):
        what = "a whole number" if kind is int else "a number"
        raise ConfigError(f"{name} must be {what}, got {value!r}") from None
    if math.isnan(number):
        raise ConfigError(f"{name} must be a number, got {value!r}")
    return kind(number)
