"""Automatic recall before a model step: look up once per message of the user, and record what the request holds of it.

Receipt and exposure are committed together with the step's start, before the provider is asked. The text that was let
in is part of the receipt, so every later request of the session is made of the log and not of what the store says then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from cayu.events import EventType as E
from cayu.knowledge.records import MAX_QUERY_CHARS, KnowledgeQuery
from cayu.knowledge.store import KnowledgeStore
from cayu.messages import Message
from cayu.recall.policy import AutomaticRecallPolicy
from cayu.recall.selection import LEFT_OUT, Candidate, focus, from_transcript, rendered, select
from cayu.runtime.log import SessionLog
from cayu.runtime.registry import Assembly
from cayu.sessions.projection import Draft
from cayu.sessions.view import RecallView, SessionView
from cayu.shielding import is_cancelling

logger = logging.getLogger("cayu.runtime")

MOST_CANDIDATE_BYTES = 2**31


class Memory(NamedTuple):
    """What a coming request holds of memory."""

    recalls: Sequence[RecallView]
    drafts: list[Draft]
    """What is to be durable before the provider is asked."""
    failed: str | None = None
    """Why the recall failed that the policy requires."""


async def remember(log: SessionLog, assembly: Assembly) -> Memory:
    """Recall for the user's last message, unless that was done, and say what of memory the next request holds."""
    view, policy = log.view, assembly.recall
    drafts: list[Draft] = []
    recalls = list(view.recalls)
    if policy is not None and policy.mode != "off" and _is_due(view):
        draft = await _recall(view, assembly, policy)
        drafts.append(draft)
        if draft.type == E.RECALL_FAILED and policy.required:
            return Memory(recalls, drafts, draft.payload["code"])
        told = draft.payload
        recalls.append(RecallView(told["recall"], told["position"], tuple(told.get("items", ())), told.get("text", "")))
    step = view.model_steps + 1
    shown = [recall for recall in recalls if recall.text]
    if shown and view.exposed != (step, tuple(recall.number for recall in shown)):
        drafts.append(_exposure(step, shown))
    return Memory(recalls, drafts)


def in_context(transcript: Sequence[Message], recalls: Sequence[RecallView]) -> Sequence[Message]:
    """Return a conversation with each recall's text before the message that it was made for."""
    shown = [recall for recall in recalls if recall.text]
    if not shown:
        return transcript
    messages: list[Message] = []
    begin = 0
    for recall in shown:
        messages += transcript[begin : recall.position]
        messages.append(Message.text("user", recall.text))
        begin = recall.position
    return [*messages, *transcript[begin:]]


def _is_due(view: SessionView) -> bool:
    last = len(view.transcript) - 1
    asked = last >= 0 and view.transcript[last].role == "user"
    return asked and not any(recall.position == last for recall in view.recalls)


async def _recall(view: SessionView, assembly: Assembly, policy: AutomaticRecallPolicy) -> Draft:
    told: dict[str, Any] = {"recall": view.recalled + 1, "position": len(view.transcript) - 1}
    told |= {"step": view.model_steps + 1, "mode": str(policy.mode), "policy": policy.fingerprint()}
    environment = assembly.environment
    assert environment is not None
    assert environment.knowledge_store is not None
    try:
        async with asyncio.timeout(policy.timeout_seconds):
            return Draft(E.RECALL_COMPLETED, told | await _found(view, environment.knowledge_store, policy))
    except TimeoutError:
        code = "timed_out"
    except asyncio.CancelledError as cancelled:
        if is_cancelling():
            raise
        code = type(cancelled).__name__
    except Exception as error:  # noqa: BLE001 - whatever a store raises, the model is asked without
        code = type(error).__name__
        logger.warning("recall failed in session %s: %s", view.row.id, code)
    return Draft(E.RECALL_FAILED, told | {"code": code})


async def _found(view: SessionView, store: KnowledgeStore, policy: AutomaticRecallPolicy) -> dict[str, Any]:
    wanted = focus(view.transcript[-1].plain_text, policy)
    query = KnowledgeQuery(
        text=wanted[:MAX_QUERY_CHARS],
        namespace=None,
        limit=policy.max_evaluated_candidates,
        max_bytes=MOST_CANDIDATE_BYTES,
    )
    answer = await store.search(query)
    knowledge = [
        Candidate(entry.id, entry.revision, "knowledge", entry.title, entry.text, hit.score, entry.namespace)
        for hit in answer.hits
        for entry in (hit.entry,)
    ]
    transcript = from_transcript(wanted, view.compacted, policy)
    items = [found.as_json() for found in select(wanted, knowledge, transcript, policy)]
    found = {"focus_bytes": len(wanted.encode()), "frontier": answer.frontier, "items": items}
    text = rendered(items)
    return found | ({"text": text} if text else {})


def _exposure(step: int, shown: Sequence[RecallView]) -> Draft:
    kept = ("source", "id", "revision", "disposition")
    items = [
        {name: item[name] for name in kept}
        for recall in shown
        for item in recall.items
        if item["disposition"] != LEFT_OUT
    ]
    return Draft(E.EXPOSURE_RECORDED, {"step": step, "recalls": [recall.number for recall in shown], "items": items})
