"""The request key of a store on one machine: made at the first use, and kept in a file that only its owner reads."""

from __future__ import annotations

import os
import secrets
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
    try:
        handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    else:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(secrets.token_hex(SECRET_BYTES))
    try:
        return MemoryInterventionRequestFingerprintKey(KEY_ID, bytes.fromhex(place.read_text(encoding="ascii")))
    except ValueError:
        raise InvalidInput(f"{place} holds no request key; restore it, or name a key with key=.") from None
