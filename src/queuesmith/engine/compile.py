"""Policies compiled for the kernel, and kept on disk so that the next process need not compile.

numba caches a function beside the file it came from and looks at nothing but that file's time
and size. So the text of a policy, with its parameters written into it, is put into a cache folder
under a name made of its hash: other text is another file.
"""

import hashlib
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from numba import njit
from numba.core.errors import NumbaError

from queuesmith.engine import strict_math
from queuesmith.engine.kernel import FLAG, KEY
from queuesmith.engine.strict_math import make_strict
from queuesmith.errors import PolicyError
from queuesmith.policies import Policy

SIGNATURES = {"waiting_key": KEY, "victim_key": KEY, "admit": FLAG, "hold": FLAG}


@dataclass(frozen=True)
class CompiledPolicy:
    """A policy with its four hooks as compiled functions; absent ones are never called."""

    policy: Policy
    waiting_key: Callable[..., float]
    victim_key: Callable[..., float]
    admit: Callable[..., bool]
    hold: Callable[..., bool]


def compile_policy(policy: Policy, *, keep: bool = True) -> CompiledPolicy:
    """Compile the hooks of a policy, or load them from the cache.

    Parameters
    ----------
    policy : Policy
    keep : bool
        Whether machine code is looked for on disk, and kept there.

    Raises
    ------
    PolicyError
        If numba cannot compile a hook; the message carries numba's reason.
    """
    compiled = _COMPILED.get(policy.source)
    if compiled is None:
        namespace, cache = _namespace(policy, keep)
        hooks = {hook: _compile_hook(policy, namespace, cache, hook) for hook in SIGNATURES}
        compiled = _COMPILED[policy.source] = CompiledPolicy(policy, **hooks)
    return CompiledPolicy(
        policy, compiled.waiting_key, compiled.victim_key, compiled.admit, compiled.hold
    )


_COMPILED: dict[str, CompiledPolicy] = {}


def _namespace(policy: Policy, keep: bool) -> tuple[dict[str, Any], bool]:
    """Run the policy's text as a module; its helper functions become compiled ones."""
    file = cached_file(policy) if keep else None
    module = ModuleType(f"queuesmith_policy_{policy.sha256[:16]}")
    module.__file__ = str(file or policy.path)
    sys.modules[module.__name__] = module  # numba's cache looks a function's module up by name
    exec(compile(policy.source, module.__file__, "exec"), module.__dict__)
    make_strict(module.__dict__)
    for key, value in list(module.__dict__.items()):
        if isinstance(value, FunctionType) and key not in SIGNATURES:
            module.__dict__[key] = njit(error_model="python")(value)
    return module.__dict__, file is not None


def _compile_hook(
    policy: Policy, namespace: dict[str, Any], cache: bool, hook: str
) -> Callable[..., Any]:
    function = namespace.get(hook)
    if function is None:
        return _absent_key if SIGNATURES[hook] is KEY else _absent_flag
    try:
        # "python": 1 / 0 raises here as it does in plain Python and inside vLLM.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numba warns when its cache folder is not writable
            try:
                return njit(SIGNATURES[hook], error_model="python", cache=cache)(function)
            except (OSError, RuntimeError) as error:
                if isinstance(error, NumbaError):
                    raise
                return njit(SIGNATURES[hook], error_model="python")(function)
    except NumbaError as error:
        reason = " ".join(str(error).split())
        raise PolicyError(
            f"policy {policy.name!r}: {hook} does not compile: {reason[:300]}. Every path must "
            "return a number made of request and engine fields; docs/reference/contract.md lists "
            "what a policy may use"
        ) from error


@njit(KEY)
def _absent_key(request, engine):  # type: ignore[no-untyped-def]
    return 0.0


@njit(FLAG)
def _absent_flag(request, engine):  # type: ignore[no-untyped-def]
    return False


def cached_file(policy: Policy) -> Path | None:
    """Write the policy's text to the cache folder; None when that cannot be written."""
    folder = cache_folder() / "policies"
    stem = policy.name.partition("(")[0]
    rules = Path(strict_math.__file__).read_bytes()  # inlined, so part of what is kept
    digest = hashlib.sha256(policy.source.encode() + rules).hexdigest()
    file = folder / f"{stem}_{digest[:16]}.py"
    try:
        if file.exists() and file.read_text(encoding="utf-8") == policy.source:
            return file
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=folder, suffix=".tmp", delete=False, encoding="utf-8"
        ) as part:
            part.write(policy.source)
        os.replace(part.name, file)
    except OSError:
        return None
    return file


def cache_folder() -> Path:
    """Return where compiled policies are kept: ``$QUEUESMITH_CACHE``, else the user's cache."""
    if chosen := os.environ.get("QUEUESMITH_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "queuesmith"
    except RuntimeError:  # no home folder
        return Path(tempfile.gettempdir()) / "queuesmith-cache"
