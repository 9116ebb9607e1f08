"""What a trial's session leaves: how it ended, what it saw of memory, and digests of both, read from its log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cayu.canonical import JSON, dumps, fingerprint, keyed_bytes, keyed_fingerprint, loads
from cayu.errors import InvalidSessionLog
from cayu.evals.evidence import EvalMemoryEvidenceLimitation, EvalMemorySourceAliasV1
from cayu.events import EventType as E
from cayu.interventions.records import MemoryInterventionExecutionRecord
from cayu.interventions.requests import RuntimeSessionCreateClaimReferenceKey
from cayu.interventions.results import MemoryInterventionRuntimeResult
from cayu.recall.attribution import MemoryAttribution, MemoryAttributionBounds, attribute
from cayu.runtime.lineage import descendants
from cayu.sessions.fold import fold
from cayu.sessions.recovery import UNFINISHED
from cayu.sessions.streams import SessionStore, StoredRecord, StreamHead
from cayu.sessions.view import SessionView
from cayu.snapshots.records import AgentSnapshotTerminalDisposition as Disposition


def alias_key(key: RuntimeSessionCreateClaimReferenceKey) -> bytes:
    """Return the key of the aliases by which the attributions of trials name memories."""
    return keyed_bytes(key.secret, "cayu.memory-alias-key", key.key_id)


async def runtime_result(
    store: SessionStore,
    execution: MemoryInterventionExecutionRecord,
    key: RuntimeSessionCreateClaimReferenceKey,
    bounds: MemoryAttributionBounds,
    resumes: bool = False,
) -> MemoryInterventionRuntimeResult:
    """Return what the session of an execution has come to. `resumes` says that it has a second turn to end with."""
    loaded = await store.load(execution.session_id)
    if loaded is None:
        return _without_evidence(execution, key, bounds, _ended(execution), EvalMemoryEvidenceLimitation.MISSING)
    try:
        view = fold(loaded.head.row, loaded.records)
    except InvalidSessionLog:
        limitation = EvalMemoryEvidenceLimitation.EVIDENCE_READ_FAILED
        return _without_evidence(execution, key, bounds, Disposition.OUTCOME_UNKNOWN, limitation)
    disposition = disposition_of(view, execution, resumes)
    heads = await descendants(store, execution.session_id)
    below = await _readable(store, heads)
    gap = EvalMemoryEvidenceLimitation.SOURCE_TREE_INCOMPLETE if len(below) < len(heads) else None
    attribution = attribute(
        loaded.records,
        alias_key(key),
        bounds,
        session_id=execution.session_id,
        below=below,
        incomplete=None if gap is None else str(gap),
    )
    usage = _usage(view, heads)
    digest = keyed_fingerprint(key.secret, "cayu.source-alias", execution.session_id)
    return MemoryInterventionRuntimeResult(
        session_id=execution.session_id,
        terminal_disposition=disposition,
        runtime_evidence_fingerprint=_evidence(key, disposition, view, loaded.records, usage),
        terminal_evidence_available=True,
        expected_receipt_count=attribution.observed_receipts + attribution.omitted_receipts_at_least,
        expected_exposure_count=attribution.observed_exposures + attribution.omitted_exposures_at_least,
        effective_attribution_bounds=bounds,
        source_alias=EvalMemorySourceAliasV1(key_id=key.key_id, digest=digest),
        attribution=attribution,
        usage_fingerprint=fingerprint("cayu.trial-usage", usage),
    )


async def _readable(store: SessionStore, heads: Sequence[StreamHead]) -> list[tuple[str, Sequence[StoredRecord]]]:
    """Return the logs of child sessions, those left out that cannot be read."""
    found = []
    for head in heads:
        loaded = await store.load(head.row.id)
        try:
            if loaded is not None:
                fold(loaded.head.row, loaded.records)
                found.append((head.row.id, loaded.records))
        except InvalidSessionLog:
            continue
    return found


def disposition_of(view: SessionView, execution: MemoryInterventionExecutionRecord, resumes: bool) -> Disposition:
    """Return how a session has ended, as its log and the observed controls say."""
    opened = view.open_round
    if view.status in UNFINISHED or (opened is not None and opened.unknown):
        return Disposition.OUTCOME_UNKNOWN
    if view.status == "completed" and (view.run.resumed or not resumes):
        return Disposition.COMPLETED
    return _ended(execution) if view.status in ("completed", "interrupted") else Disposition.FAILED


def _ended(execution: MemoryInterventionExecutionRecord) -> Disposition:
    """Return how a session has ended that did not come to its own end."""
    if execution.runtime_timeout_observed:
        return Disposition.TIMED_OUT
    return Disposition.CANCELLED if execution.runtime_cancellation_observed else Disposition.FAILED


def _without_evidence(
    execution: MemoryInterventionExecutionRecord,
    key: RuntimeSessionCreateClaimReferenceKey,
    bounds: MemoryAttributionBounds,
    disposition: Disposition,
    limitation: EvalMemoryEvidenceLimitation,
) -> MemoryInterventionRuntimeResult:
    material = [execution.session_id, str(disposition), str(limitation)]
    return MemoryInterventionRuntimeResult(
        session_id=execution.session_id,
        terminal_disposition=disposition,
        runtime_evidence_fingerprint=keyed_fingerprint(key.secret, "cayu.runtime-evidence", material),
        terminal_evidence_available=False,
        terminal_evidence_limitation=limitation,
        effective_attribution_bounds=bounds,
        attribution=MemoryAttribution.unavailable(str(limitation)),
    )


def _evidence(
    key: RuntimeSessionCreateClaimReferenceKey,
    disposition: Disposition,
    view: SessionView,
    records: Sequence[StoredRecord],
    usage: JSON,
) -> str:
    """Return the digest of what was said and seen, keyed, since content is in it; no time and no id of the store is."""
    kinds = (E.RECALL_COMPLETED, E.RECALL_FAILED, E.EXPOSURE_RECORDED)
    memory = [[record.type, _seen(loads(record.body))] for record in records if record.type in kinds]
    material: dict[str, Any] = {
        "disposition": str(disposition),
        "transcript": [loads(dumps(message.model_dump(mode="json"))) for message in view.transcript],
        "memory": memory,
        "usage": usage,
    }
    return keyed_fingerprint(key.secret, "cayu.runtime-evidence", material)


def _seen(told: dict[str, Any]) -> dict[str, Any]:
    """Return a recall or an exposure without the scores, which follow from the texts."""
    items = [[item[name] for name in ("source", "id", "revision", "disposition")] for item in told.get("items", ())]
    return told | {"items": items}


def _usage(view: SessionView, below: Sequence[StreamHead]) -> JSON:
    """Return the tokens of the session and of everything below it."""
    return {
        "input_tokens": view.usage.input_tokens + sum(head.state.input_tokens for head in below),
        "output_tokens": view.usage.output_tokens + sum(head.state.output_tokens for head in below),
        "tool_calls": view.tool_calls + sum(head.state.tool_calls for head in below),
    }
