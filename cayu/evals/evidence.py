"""What an evaluation can say about the memory behind a result, and why it sometimes cannot."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from cayu.evals.fields import Fingerprint, Id
from cayu.messages import Frozen


class EvalMemoryEvidenceLimitation(StrEnum):
    """Why the evidence on memory is not there or not whole."""

    SOURCE_LIMIT = "source_limit"
    SOURCE_BYTES_LIMIT = "source_bytes_limit"
    PROJECTION_BYTES_LIMIT = "projection_bytes_limit"
    RUNTIME_ATTRIBUTION_TRUNCATED = "runtime_attribution_truncated"
    STORE_UNSUPPORTED = "store_unsupported"
    EVIDENCE_READ_FAILED = "evidence_read_failed"
    ALIAS_KEY_UNAVAILABLE = "alias_key_unavailable"
    MISSING = "missing"
    DELETED = "deleted"
    LEGACY = "legacy"
    CONTRADICTORY_LINEAGE = "contradictory_lineage"
    SOURCE_TREE_INCOMPLETE = "source_tree_incomplete"
    CLOSURE_CHANGED = "closure_changed"
    DEADLINE_EXPIRED = "deadline_expired"


class EvalMemorySourceAliasV1(Frozen):
    """The session that evidence was read from, under a key."""

    algorithm: Literal["hmac-sha256"] = "hmac-sha256"
    key_id: Id
    digest: Fingerprint
