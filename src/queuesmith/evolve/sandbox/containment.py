"""A forked process that may compute and answer, and little else.

Two fences, each of which alone would stop most of what a stranger may try:

* resource limits, which every Unix has: processor time, memory, no new descriptor (so no file, no
  socket, no pipe), no new process, no file content, no core dump;
* where Linux offers them, a seccomp filter, which leaves the system calls that computing needs, and
  a network namespace with nothing in it.

This is containment, not a security boundary: ``docs/background/containment.md``.
"""

import ctypes
import os
import platform
import select
import signal
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

#: How a contained process ended: with an answer; by a signal, or it left without one; by the wall
#: clock; with an answer of more bytes than it may have.
ANSWERED, DIED, TOO_SLOW, TOO_LONG = range(4)

_LENGTH = struct.Struct("<I")  # before the bytes of an answer
_NOBODY = 65534


@dataclass(frozen=True)
class Limits:
    """What one contained process may use."""

    cpu_seconds: int  # of processor time; also the precision of the limit
    wall_seconds: float  # from its start to its answer
    memory_mib: int  # on top of what the forking process has
    answer_bytes: int


@dataclass(frozen=True)
class Ended:
    """How a contained process ended, as its parent saw it."""

    how: int  # `ANSWERED`, `DIED`, `TOO_SLOW` or `TOO_LONG`
    code: int  # number of the signal that killed it, else 0
    cpu_seconds: float
    peak_mib: int  # resident memory, that of the forking process included
    answer: bytes  # whatever it wrote: nothing of it is to be believed


class ParentGone(Exception):
    """Whoever wanted the answer has closed the other end."""


def contained(
    work: Callable[[], bytes], limits: Limits, folder: str, *, watched: int | None = None
) -> Ended:
    """Run `work` in a forked process and return its bytes, or how else it ended.

    Parameters
    ----------
    work : callable
        What it does to this process's memory is lost with the fork.
    watched : int, optional
        A descriptor that whoever wants the answer keeps open.

    Raises
    ------
    ParentGone
        If `watched` was closed from the other side; the fork has been killed.
    """
    reader, writer = os.pipe()
    deadline = time.monotonic() + limits.wall_seconds
    pid = os.fork()
    if pid == 0:
        _compute(work, limits, folder, writer)
    os.close(writer)
    with suppress(OSError):  # the fork does so itself: whoever comes first
        os.setpgid(pid, pid)
    try:
        how, answer = _receive(reader, limits, deadline, watched)
    finally:
        # Its work is done or lost, and whatever else it started goes with it.
        for kill in (os.kill, os.killpg):
            with suppress(OSError):
                kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        os.close(reader)
    return Ended(
        how=how,
        code=os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        peak_mib=usage.ru_maxrss >> (20 if sys.platform == "darwin" else 10),
        answer=answer,
    )


def _receive(
    reader: int, limits: Limits, deadline: float, watched: int | None
) -> tuple[int, bytes]:
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    if watched is not None:
        poll.register(watched, 0)  # reports a hang-up, and nothing else
    received = b""
    while True:
        events = dict(poll.poll(max(deadline - time.monotonic(), 0.0) * 1000))
        if watched in events:
            raise ParentGone
        if not events:
            return TOO_SLOW, b""
        part = os.read(reader, 1 << 16)
        received += part
        if not part:
            return DIED, b""
        if len(received) < _LENGTH.size:
            continue
        (length,) = _LENGTH.unpack_from(received)
        if max(length, len(received) - _LENGTH.size) > limits.answer_bytes:
            return TOO_LONG, b""
        if len(received) >= _LENGTH.size + length:
            return ANSWERED, received[_LENGTH.size : _LENGTH.size + length]


def _compute(work: Callable[[], bytes], limits: Limits, folder: str, writer: int) -> NoReturn:
    """Be the fork; nothing that happens here returns to the code of the process that forked."""
    try:
        _enter(limits, folder, writer)
        answer = work()
        data = memoryview(_LENGTH.pack(len(answer)) + answer)
        while data:
            data = data[os.write(writer, data) :]
    finally:
        os._exit(0)


#: The fences around this process, by name; filled in by the fork.
in_force: list[str] = []


def _enter(limits: Limits, folder: str, writer: int) -> None:
    """Give up whatever computing does not need; for good, and before any of `work` runs."""
    import resource  # which Windows does not have

    os.setpgid(0, 0)
    os.chdir(folder)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(null, standard)
    os.closerange(3, writer)
    os.closerange(writer + 1, min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1 << 16))
    for name in list(os.environ):
        if not name.startswith("NUMBA_"):  # which numba reads again whenever they change
            del os.environ[name]
    memory = _address_space()
    if os.geteuid() == 0:
        with suppress(OSError):  # not in a user namespace that knows no other user
            os.setgroups([])
            os.setgid(_NOBODY)
            os.setuid(_NOBODY)
    most = {
        resource.RLIMIT_CPU: (limits.cpu_seconds, limits.cpu_seconds + 1),
        resource.RLIMIT_NOFILE: (0, 0),
        resource.RLIMIT_NPROC: (0, 0),
        resource.RLIMIT_FSIZE: (0, 0),
        resource.RLIMIT_CORE: (0, 0),
    }
    if memory is not None:
        most[resource.RLIMIT_AS] = (memory + (limits.memory_mib << 20),) * 2
    for kind, (soft, hard) in most.items():
        ceiling = resource.getrlimit(kind)[1]
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(kind, (soft, hard))
    in_force.append("resource limits")
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if filter_system_calls():
            in_force.append("system call filter")


def _address_space() -> int | None:
    """Return the bytes of this process's address space; None where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


# Linux: constants of <linux/prctl.h>, <linux/sched.h>, <linux/seccomp.h>, <linux/audit.h> and
# <linux/bpf_common.h>, which Python does not have.
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWNET = 0x08000000, 0x10000000, 0x40000000
_SECCOMP_MODE_FILTER = 2
_KILL_PROCESS, _ERROR_EPERM, _ALLOW = 0x80000000, 0x00050001, 0x7FFF0000
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET = 0, 4  # in struct seccomp_data

#: Per machine: its number in the kernel's audit, and the system calls that computing needs.
_SYSTEM_CALLS = {
    "x86_64": (
        0xC000003E,
        {
            "read": 0, "write": 1, "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12,
            "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "sched_yield": 24,
            "mremap": 25, "madvise": 28, "getpid": 39, "exit": 60, "getcwd": 79, "gettimeofday": 96,
            "getrusage": 98, "sigaltstack": 131, "gettid": 186, "futex": 202,
            "restart_syscall": 219, "clock_gettime": 228, "exit_group": 231, "getrandom": 318,
        },
    ),
}  # fmt: skip


class _Program(ctypes.Structure):
    """A ``struct sock_fprog``."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def filter_system_calls() -> bool:
    """Let this process make no system call but those that computing needs; others fail.

    Returns False where that cannot be had.
    """
    known = _SYSTEM_CALLS.get(platform.machine())
    if known is None:
        return False
    architecture, calls = known
    code = [(_LOAD, 0, 0, _ARCHITECTURE_OFFSET), (_JUMP_IF_EQUAL, 1, 0, architecture)]
    code += [(_RETURN, 0, 0, _KILL_PROCESS), (_LOAD, 0, 0, _NUMBER_OFFSET)]
    for place, number in enumerate(sorted(calls.values())):
        code.append((_JUMP_IF_EQUAL, len(calls) - place, 0, number))
    code += [(_RETURN, 0, 0, _ERROR_EPERM), (_RETURN, 0, 0, _ALLOW)]
    packed = b"".join(struct.pack("<HBBI", *instruction) for instruction in code)
    program = _Program(len(code), packed)
    return (
        _prctl(_PR_SET_NO_NEW_PRIVS, 1) == 0
        and _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(program)) == 0
    )


def leave_network() -> bool:
    """Put this process and its forks into a network of their own, with nothing in it.

    Returns False where the system does not allow that. The process must have a single thread.
    """
    if sys.platform != "linux":
        return False
    empty = _CLONE_NEWNET | _CLONE_NEWIPC
    unshare = _libc().unshare
    return any(unshare(flags) == 0 for flags in (empty, empty | _CLONE_NEWUSER))


def _prctl(option: int, *arguments: int) -> int:
    padded = [*arguments, 0, 0, 0, 0][:4]
    result: int = _libc().prctl(option, *map(ctypes.c_ulong, padded))
    return result


def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)
