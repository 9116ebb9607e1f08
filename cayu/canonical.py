"""The JSON domain, canonical bytes and every digest: this is the only module that hashes.

Values enter through `normalise`, become bytes by RFC 8785 and names by SHA-256 or HMAC-SHA-256.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from typing import Any

import orjson
import rfc8785

from cayu.errors import NotJson

JSON = Any
"""A value of the JSON domain: None, bool, int, finite float, str, list and dict with text keys."""

MAX_EXACT_INTEGER = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly; larger ones are tagged strings in digests."""

MAX_STORED_INTEGER = 2**63 - 1
MAX_DEPTH = 64


def normalise(value: object, path: str = "$", depth: int = 0) -> JSON:
    """Return a detached copy of `value` inside the JSON domain.

    Tuples become lists and lone surrogates U+FFFD. Raises `NotJson`, naming the place and the kind of problem, for
    NaN, infinities, integers beyond 64 bits, keys that are not text, nesting beyond 64 levels and other types.
    """
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        if abs(value) > MAX_STORED_INTEGER:
            raise NotJson(path=path, problem="an integer beyond 64 bits")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise NotJson(path=path, problem="not a finite number")
        return float(value)
    if depth >= MAX_DEPTH:
        raise NotJson(path=path, problem=f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, list | tuple):
        return [normalise(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    if isinstance(value, dict):
        found = {_key(key, path): normalise(item, f"{path}.{key}", depth + 1) for key, item in value.items()}
        if len(found) < len(value):
            raise NotJson(path=path, problem="an object with two keys that become one")
        return found
    raise NotJson(path=path, problem=f"of type {type(value).__name__}")


def _text(value: str) -> str:
    if value.isascii():
        return str.__str__(value)
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _key(key: object, path: str) -> str:
    if not isinstance(key, str):
        raise NotJson(path=path, problem=f"an object with a key of type {type(key).__name__}")
    return _text(key)


def dumps(value: JSON) -> bytes:
    """Return compact JSON bytes for storage; the value must be inside the domain."""
    return orjson.dumps(value)


def loads(data: bytes | str) -> JSON:
    """Return the value that `dumps` stored."""
    return orjson.loads(data)


def canonical_bytes(value: JSON) -> bytes:
    """Return the RFC 8785 form of `value`, with integers beyond 2**53 as tagged strings."""
    if _is_plain(value):
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    return rfc8785.dumps(_tagged(value))


def _is_plain(value: JSON) -> bool:
    """True for a value whose sorted JSON is its RFC 8785 form: ASCII text, exact integers, no floats, no tags."""
    if isinstance(value, str):
        return value.isascii() and not value.startswith("$")
    if isinstance(value, dict):
        return all(map(str.isascii, value)) and all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or (isinstance(value, int) and abs(value) <= MAX_EXACT_INTEGER)


def _tagged(value: JSON) -> JSON:
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) > MAX_EXACT_INTEGER:
        return f"$int:{value}"
    if isinstance(value, str):
        return f"$str:{value}" if value.startswith(("$int:", "$str:")) else value
    if isinstance(value, list | tuple):
        return [_tagged(item) for item in value]
    if isinstance(value, dict):
        return {key: _tagged(item) for key, item in value.items()}
    return value


def fingerprint(kind: str, value: JSON) -> str:
    """Return the SHA-256 of `value` in the named domain `kind`, as 64 hexadecimal digits."""
    return hashlib.sha256(kind.encode() + b"\0" + canonical_bytes(value)).hexdigest()


def keyed_fingerprint(secret: bytes, kind: str, value: JSON) -> str:
    """Return the HMAC-SHA-256 of `value` under `secret`, as 64 hexadecimal digits."""
    return hmac.new(secret, kind.encode() + b"\0" + canonical_bytes(value), hashlib.sha256).hexdigest()


def keyed_bytes(secret: bytes, kind: str, value: JSON) -> bytes:
    """Return the same HMAC-SHA-256 as 32 bytes, fit to be a secret of its own."""
    return bytes.fromhex(keyed_fingerprint(secret, kind, value))


def file_digest(data: bytes) -> str:
    """Return the SHA-256 of raw file bytes, as 64 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def same(left: str, right: str) -> bool:
    """Compare two digests or tokens in constant time."""
    return hmac.compare_digest(left.encode(), right.encode())
