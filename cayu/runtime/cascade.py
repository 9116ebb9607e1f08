"""Interrupting a session with everything that works for it, wherever each part runs.

The request is durable before anything is stopped: a root that was cut off in between is `interrupting` and is taken up
by the next startup. Sessions whose process is lost are closed here, the youngest generation first.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import aclosing

from cayu.canonical import dumps
from cayu.errors import IllegalTransition, InvalidSessionLog, SessionNotRunning, SessionRunning, StoreError
from cayu.events import Event
from cayu.runtime.admission import Standing, stand
from cayu.runtime.drive import Drive, Services
from cayu.runtime.entries import enter_closing, interrupt_draft
from cayu.runtime.lineage import descendants
from cayu.runtime.log import build_event
from cayu.sessions.recovery import UNFINISHED
from cayu.sessions.requests import InterruptSessionRequest
from cayu.sessions.streams import Record, Unit

logger = logging.getLogger("cayu.runtime")


async def interrupt_tree(services: Services, request: InterruptSessionRequest) -> AsyncIterator[Event]:
    """Stop a session and all below it; yields what is written here. Raises `SessionNotRunning`."""
    root = await stand(services, request.session_id)
    below = await descendants(services.store, request.session_id)
    if root.view.status not in UNFINISHED and any(head.state.status in UNFINISHED for head in below):
        async for event in _stop_below(services, request):
            yield event
        return
    _refuse_rest(root)
    if below and not _is_at_work(services, root):
        for event in await ask_to_stop(services, root, request, request.session_id):
            yield event
    if _is_at_work(services, root):
        async for event in _stop(services, request, request.session_id):
            yield event
        async for event in _stop_below(services, request):
            yield event
    else:
        async for event in _stop_below(services, request):
            yield event
        async for event in _stop(services, request, request.session_id):
            yield event


async def _stop_below(services: Services, request: InterruptSessionRequest) -> AsyncIterator[Event]:
    """Stop what works for a session, the youngest first; all are tried before a failure of the store is raised."""
    failed: StoreError | None = None
    for head in reversed(await descendants(services.store, request.session_id)):
        if head.state.status not in UNFINISHED:
            continue
        theirs = request.model_copy(update={"session_id": head.row.id})
        try:
            async for event in _stop(services, theirs, request.session_id):
                yield event
        except SessionNotRunning:
            continue  # it has ended meanwhile
        except InvalidSessionLog:
            logger.warning("session %s below %s cannot be read, and stays as it is", head.row.id, request.session_id)
        except StoreError as error:
            failed = failed or error
    if failed is not None:
        raise failed


async def _stop(services: Services, request: InterruptSessionRequest, root_id: str) -> AsyncIterator[Event]:
    """Ask a session that is at work to stop, or close one that is lost; whoever takes it over meanwhile is asked."""
    while True:
        standing = await stand(services, request.session_id)
        _refuse_rest(standing)
        if _is_at_work(services, standing):
            for event in await ask_to_stop(services, standing, request, root_id):
                yield event
            return
        try:
            async with aclosing(Drive(services, enter_closing(request, root_id)).events()) as events:
                async for event in events:
                    yield event
            return
        except SessionRunning:
            continue


def _is_at_work(services: Services, standing: Standing) -> bool:
    return standing.owned or standing.view.row.id in services.drives


def _refuse_rest(standing: Standing) -> None:
    if standing.view.status not in UNFINISHED:
        raise SessionNotRunning(session_id=standing.view.row.id, status=standing.view.status)


async def ask_to_stop(
    services: Services, standing: Standing, request: InterruptSessionRequest, cascade_root: str
) -> list[Event]:
    """Append the request, whoever owns the session, and tell a drive of this application at once.

    A session that was asked already and is lost is not asked again.
    """
    row = standing.view.row
    drive = services.drives.get(row.id)
    if standing.view.interrupt_requested and drive is None and not standing.owned:
        return []
    draft = interrupt_draft(request, cascade_root)
    unit = Unit(stream=row.id, expected_version=None, fence=None, records=(Record(draft.type, dumps(draft.payload)),))
    try:
        state, _ = await services.store.append(unit)
    except IllegalTransition as ended:
        raise SessionNotRunning(session_id=row.id, status=ended.state) from None
    if drive is not None:
        drive.interrupt()
    loaded = await services.store.load(row.id, state.version - 1)
    return [build_event(row, record) for record in loaded.records[:1]] if loaded else []
