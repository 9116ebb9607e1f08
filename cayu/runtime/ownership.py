"""Who holds a session: owner ids that say where a process runs, and when it is provably gone."""

from __future__ import annotations

import os
import platform
import secrets
from functools import cache
from pathlib import Path

_LIVE: set[str] = set()
"""Claims held by this process at this moment."""
RECOVERING = "recovery in "
"""How the owner id of a recovery begins."""
SHOWN_NODE = 24
"""Characters of the machine's name that are shown; the whole of it stands in what follows."""
_PARTS = 6
_START_FIELD = 19
"""Where the start time stands in /proc/PID/stat, counted from the field after the command's name."""


@cache
def _here() -> tuple[str, str, str]:
    """Name this machine, its boot, and the namespace within which process ids mean something."""
    machine = f"{platform.node()}/{_read('/etc/machine-id')}"
    return machine, _read("/proc/sys/kernel/random/boot_id"), _link("/proc/self/ns/pid")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return "-"


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return "-"


def _start_of(pid: int) -> str:
    """Return when a process started, in the kernel's ticks; '-' where the system does not tell."""
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[_START_FIELD] if len(fields) > _START_FIELD else "-"


def new_owner(role: str = "") -> str:
    """Return an owner id for one claim: readable first, then machine, boot, namespace, process start and a token."""
    pid = os.getpid()
    places = "|".join((*_here(), str(pid), _start_of(pid), secrets.token_hex(6)))
    owner = f"{role}process {pid} on {platform.node()[:SHOWN_NODE]} [{places}]"
    _LIVE.add(owner)
    return owner


def forget(owner: str) -> None:
    """Say that a claim of this process has ended, released or not."""
    _LIVE.discard(owner)


def is_gone(owner: str) -> bool:
    """True when the owner ran on this machine and its process, or its claim within this process, is no more.

    False for an owner of which nothing is known here: then the lease has to run out.
    """
    parts = owner.partition(" [")[2].rstrip("]").split("|")
    if len(parts) != _PARTS:
        return False
    machine, boot, namespace, pid_text, start, _ = parts
    here_machine, here_boot, here_namespace = _here()
    if machine != here_machine or machine.endswith("/-") or "-" in (boot, here_boot):
        return False
    if boot != here_boot:
        return True
    if namespace != here_namespace:
        return False
    pid = int(pid_text)
    if pid == os.getpid() and start == _start_of(pid):
        return owner not in _LIVE
    return not _runs(pid) or _start_of(pid) != start


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].strip()[:1] != "Z"
