"""Policies compiled for the kernel, and kept on disk so that the next process need not compile.

numba caches a function beside the file it came from and looks at nothing but that file's time
and size. So the text of a policy, with its parameters written into it, is put into a cache folder
under a name made of its hash: other text is another file.
"""

import hashlib
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numba
from numba import njit, types
from numba.core.errors import NumbaError

from queuesmith.engine import strict_math
from queuesmith.engine.kernel.loop import FLAG, KEY
from queuesmith.engine.strict_math import make_strict
from queuesmith.errors import PolicyError
from queuesmith.machine_code import own_temporary_folder
from queuesmith.policies import Policy, rewriting
from queuesmith.routers import Router
from queuesmith.routers.rows import REPLICA_DTYPE, SENT_DTYPE

SIGNATURES = {"waiting_key": KEY, "victim_key": KEY, "admit": FLAG, "hold": FLAG, "reject": FLAG}
ROUTE_SIGNATURE = types.float64(numba.from_dtype(SENT_DTYPE), numba.from_dtype(REPLICA_DTYPE))


@dataclass(frozen=True)
class CompiledPolicy:
    """A policy with its hooks as compiled functions; absent ones are never called."""

    policy: Policy
    waiting_key: Callable[..., float]
    victim_key: Callable[..., float]
    admit: Callable[..., bool]
    hold: Callable[..., bool]
    reject: Callable[..., bool]


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
        hooks = {
            hook: _compile_hook(policy, namespace, cache, hook, signature)
            if hook in namespace
            else _ABSENT[signature]
            for hook, signature in SIGNATURES.items()
        }
        compiled = _COMPILED[policy.source] = CompiledPolicy(policy, **hooks)
    return replace(compiled, policy=policy)


_COMPILED: dict[str, CompiledPolicy] = {}


def compile_router(router: Router, *, keep: bool = True) -> Callable[..., float]:
    """Compile the hook of a router, or load it from the cache.

    Raises
    ------
    PolicyError
        If numba cannot compile it; the message carries numba's reason.
    """
    compiled = _COMPILED_ROUTERS.get(router.source)
    if compiled is None:
        namespace, cache = _namespace(router, keep)
        compiled = _compile_hook(router, namespace, cache, "route_key", ROUTE_SIGNATURE)
        _COMPILED_ROUTERS[router.source] = compiled
    return compiled


_COMPILED_ROUTERS: dict[str, Callable[..., float]] = {}


def _namespace(policy: Policy | Router, keep: bool) -> tuple[dict[str, Any], bool]:
    """Run the policy's text as a module; its helper functions become compiled ones."""
    hooks = SIGNATURES if isinstance(policy, Policy) else {"route_key"}
    file = cached_file(policy) if keep else None
    module = ModuleType(f"queuesmith_policy_{policy.sha256[:16]}")
    module.__file__ = str(file or policy.path)
    sys.modules[module.__name__] = module  # numba's cache looks a function's module up by name
    exec(_in_file(policy.code, module.__file__), module.__dict__)
    make_strict(module.__dict__)
    for key, value in list(module.__dict__.items()):
        if isinstance(value, FunctionType) and key not in hooks:
            module.__dict__[key] = njit(error_model="python")(value)
    return module.__dict__, file is not None


def _in_file(code: CodeType, file: str) -> CodeType:
    """Let a file's code say that it is from another file."""
    parts = [
        _in_file(part, file) if isinstance(part, CodeType) else part for part in code.co_consts
    ]
    return code.replace(co_filename=file, co_consts=tuple(parts))


def _compile_hook(
    policy: Policy | Router, namespace: dict[str, Any], cache: bool, hook: str, signature: Any
) -> Callable[..., Any]:
    function = namespace[hook]
    compiled: Callable[..., Any]
    try:
        # "python": 1 / 0 raises here as it does in plain Python and inside vLLM.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numba warns when its cache folder is not writable
            try:
                compiled = njit(signature, error_model="python", cache=cache)(function)
            except (OSError, RuntimeError) as error:
                if isinstance(error, NumbaError):
                    raise
                compiled = njit(signature, error_model="python")(function)
    except NumbaError as error:
        reason = " ".join(str(error).split())
        raise PolicyError(
            f"{'router' if isinstance(policy, Router) else 'policy'} {policy.name!r}: {hook} does "
            f"not compile: {reason[:300]}. Every path must return a number made of the fields of "
            "its rows; docs/reference/contract.md lists what may be used"
        ) from error
    return compiled


@njit(KEY)
def _absent_key(request, engine):  # type: ignore[no-untyped-def]
    return 0.0


@njit(FLAG)
def _absent_flag(request, engine):  # type: ignore[no-untyped-def]
    return False


_ABSENT = {KEY: _absent_key, FLAG: _absent_flag}


def cached_file(policy: Policy | Router) -> Path | None:
    """Write the policy's text to the cache folder; None when that cannot be written."""
    base = cache_folder()
    if base is None:
        return None
    folder = base / "policies"
    # numba makes names of it, with braces of its own and more letters.
    stem = re.sub(r"[^\w-]", "_", policy.name.partition("(")[0])[:60]
    # What is rewritten and inlined is part of what is kept.
    rules = [Path(str(module.__file__)).read_bytes() for module in (strict_math, rewriting)]
    digest = hashlib.sha256(b"".join([policy.source.encode(), *rules])).hexdigest()
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


def cache_folder() -> Path | None:
    """Return where compiled policies are kept: ``$QUEUESMITH_CACHE``, else the user's cache.

    None where there is no place that is the user's own: machine code is loaded from it.
    """
    if chosen := os.environ.get("QUEUESMITH_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "queuesmith"
    except RuntimeError:  # no home folder
        return own_temporary_folder("queuesmith-cache")
