"""The request key of a store on one machine: made at the first use, and kept in a file that only its owner reads."""

from __future__ import annotations

import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path

from cayu.errors import InvalidInput
from cayu.interventions.requests import MemoryInterventionRequestFingerprintKey

KEY_ID = "local"
SECRET_BYTES = 32


def key_beside(path: str | Path) -> MemoryInterventionRequestFingerprintKey:
    """Return the key in the file `<path>.key`, made when there is none.

    Trials are known by it: without the file, those of the store can be read and not gone on with. Raises `InvalidInput`
    for a file that holds no key.
    """
    place = Path(f"{path}.key")
    if not place.exists():
        _keep(secrets.token_hex(SECRET_BYTES), place)
    try:
        return MemoryInterventionRequestFingerprintKey(KEY_ID, bytes.fromhex(place.read_text(encoding="ascii")))
    except ValueError:
        raise InvalidInput(f"{place} holds no request key; restore it, or name a key with key=.") from None


def _keep(secret: str, place: Path) -> None:
    """Write a secret unless another process was first; whoever looks finds all of it, or nothing."""
    handle, name = tempfile.mkstemp(dir=place.parent, prefix=f"{place.name}.")  # which only its owner reads
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(secret)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(name, place)
    finally:
        os.unlink(name)
