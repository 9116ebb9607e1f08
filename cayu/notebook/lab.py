"""The lab: one application and its store, with every verb blocking and awaiting, and everything readable as frames.

A verb is a short call of one public method of the runtime. No verb waits for a human: a run that needs a decision
returns, and the decision is made in a widget, another cell, another process, or tomorrow.
"""

from __future__ import annotations

import atexit
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from cayu.errors import InvalidInput, LabClosed, LabNotQuiet, OnLabLoop
from cayu.events import Event
from cayu.messages import Message
from cayu.notebook.bridge import CLOSING_SECONDS, Bridge
from cayu.notebook.experimenting import Experimenting
from cayu.notebook.frames import Ask, Data
from cayu.notebook.handles import ApprovalHandle, Pending, SessionHandle
from cayu.notebook.naming import Decidable, Named, actor, pending_action, session_id
from cayu.notebook.operating import OnEvent, Operating
from cayu.notebook.problems import Problems
from cayu.notebook.tables import Frames, Gather
from cayu.notebook.timings import gather_timings
from cayu.observability.timing_files import TimingFileSink, TimingsRead
from cayu.runtime.app import CayuApp
from cayu.runtime.outcome import lost_sessions, session_view
from cayu.sessions.records import PendingActionQuery
from cayu.sessions.requests import (
    ResumeRequest,
    RunRequest,
    ToolApprovalDecision,
    ToolApprovalRequest,
    UserInputResponse,
)
from cayu.sessions.streams import HeadQuery, SessionStore, StreamHead
from cayu.storage.sql.sqlite.database import Mode
from cayu.storage.sql.sqlite.sessions import SQLiteSessionStore
from cayu.timing.records import TimingRecord

T = TypeVar("T")
Factory = Callable[..., Any]
"""factory(session_store=...) -> CayuApp, or an awaitable of one."""
MOST_PENDING = 1000


class Lab(Operating, Experimenting, Frames):
    """An application at work in a notebook or a script. Make one with `Lab.open`; close it, or let the exit do so."""

    def __init__(
        self, store_at: Callable[[], SessionStore], factory: Factory | None, *, where: str, timings_at: Path
    ) -> None:
        """Use `Lab.open`; `store_at` opens the store anew, `where` names it for people.

        Timing records are kept in files in the folder `timings_at`.
        """
        self.where = where
        self._timings_at = timings_at
        self.problems = Problems()
        self._store_at = store_at
        self._factory = factory
        self._bridge = Bridge()
        self._closed = False
        self.experiments = []
        try:
            self.app = self._build()
        except BaseException:
            self._bridge.close()
            raise
        atexit.register(self.close)

    @classmethod
    def open(cls, path: str | Path, *, factory: Factory | None = None, mode: Mode = "rw") -> Lab:
        """Open the store at `path`, created when new, and build the application over it.

        `factory(session_store=...)` returns a `CayuApp` on that store; without one, or with `mode="ro"`, the lab only
        looks, at a file that exists. Timing records of its work are kept in the folder `<path>.timing`. Raises the
        `StoreError` that says what is wrong with the file.
        """

        if mode not in ("rw", "ro"):
            raise InvalidInput(f"mode is 'rw' or 'ro', not {mode!r}.")
        if factory is not None and not callable(factory):
            raise InvalidInput("factory is a function, build_app(*, session_store), that returns a CayuApp.")
        looks = mode == "ro" or factory is None

        def store_at() -> SessionStore:
            return SQLiteSessionStore(path, mode="ro" if looks else "rw")

        lab = cls(store_at, None if looks else factory, where=str(path), timings_at=Path(f"{path}.timing"))
        try:
            lab._bridge.call(lab.app.session_store.heads(HeadQuery(limit=1)))
        except BaseException:
            lab.close()
            raise
        return lab

    def _build(self) -> CayuApp:
        store = self._store_at()
        if self._factory is None:
            return CayuApp(session_store=store)
        made = self._factory(session_store=store)
        app = self._bridge.call(_awaited(made)) if inspect.isawaitable(made) else made
        if not isinstance(app, CayuApp):
            raise InvalidInput(f"The factory returned {type(app).__name__}; it returns a CayuApp.")
        if app.session_store is not store:
            raise InvalidInput("The factory's application is not on the session_store that it was given; pass it on.")
        app.add_timing_sink(TimingFileSink(self._timings_at))
        return app

    # Verbs: each blocks, and has an asynchronous twin that is awaited.

    def run(self, agent: str, text: str, *, on_event: OnEvent | None = None, **request: Any) -> SessionHandle:
        """Begin a session of `agent` with a message; `request` takes further fields of `RunRequest`."""
        return self.call(self._run(agent, text, on_event, request))

    async def arun(self, agent: str, text: str, *, on_event: OnEvent | None = None, **request: Any) -> SessionHandle:
        """Await `run`."""
        return await self._bridge.acall(self._run(agent, text, on_event, request))

    async def _run(self, agent: str, text: str, on_event: OnEvent | None, request: dict[str, Any]) -> SessionHandle:
        asked = RunRequest(agent_name=agent, messages=(Message.text("user", text),), **request)
        return await self._consume(self._working().run(asked), on_event)

    def resume(self, session: Named, text: str, *, on_event: OnEvent | None = None, **request: Any) -> SessionHandle:
        """Go on with a session that has ended; `request` takes further fields of `ResumeRequest`."""
        return self.call(self._resume(session, text, on_event, request))

    async def aresume(
        self, session: Named, text: str, *, on_event: OnEvent | None = None, **request: Any
    ) -> SessionHandle:
        """Await `resume`."""
        return await self._bridge.acall(self._resume(session, text, on_event, request))

    async def _resume(
        self, session: Named, text: str, on_event: OnEvent | None, request: dict[str, Any]
    ) -> SessionHandle:
        asked = ResumeRequest(session_id=session_id(session), messages=(Message.text("user", text),), **request)
        return await self._consume(self._working().resume(asked), on_event)

    def approve(
        self,
        action: Decidable,
        *,
        arguments: dict[str, Any] | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> SessionHandle:
        """Approve a call, with edited arguments if given; returns when the session pauses or ends."""
        return self.call(self._decide(action, ToolApprovalDecision.APPROVE, arguments, reason, by))

    async def aapprove(
        self,
        action: Decidable,
        *,
        arguments: dict[str, Any] | None = None,
        reason: str | None = None,
        by: str | None = None,
    ) -> SessionHandle:
        """Await `approve`."""
        return await self._bridge.acall(self._decide(action, ToolApprovalDecision.APPROVE, arguments, reason, by))

    def deny(self, action: Decidable, *, reason: str | None = None, by: str | None = None) -> SessionHandle:
        """Deny a call; returns when the session pauses or ends."""
        return self.call(self._decide(action, ToolApprovalDecision.DENY, None, reason, by))

    async def adeny(self, action: Decidable, *, reason: str | None = None, by: str | None = None) -> SessionHandle:
        """Await `deny`."""
        return await self._bridge.acall(self._decide(action, ToolApprovalDecision.DENY, None, reason, by))

    async def _decide(
        self,
        action: Decidable,
        decision: ToolApprovalDecision,
        arguments: dict[str, Any] | None,
        reason: str | None,
        by: str | None,
    ) -> SessionHandle:
        action = pending_action(action)
        request = ToolApprovalRequest(
            session_id=action.session,
            approval_id=action.id,
            tool_call_id=action.tool_call_id,
            decision=decision,
            arguments=arguments,
            reason=reason,
            resolved_by=actor(by),
        )
        return await self._consume(self._working().resolve_tool_approval(request), None)

    def answer(self, action: Decidable, text: str, *, by: str | None = None) -> SessionHandle:
        """Answer a question; returns when the session pauses or ends."""
        return self.call(self._answer(action, text, by))

    async def aanswer(self, action: Decidable, text: str, *, by: str | None = None) -> SessionHandle:
        """Await `answer`."""
        return await self._bridge.acall(self._answer(action, text, by))

    async def _answer(self, action: Decidable, text: str, by: str | None) -> SessionHandle:
        action = pending_action(action)
        response = UserInputResponse(session_id=action.session, input_id=action.id, answer=text, resolved_by=actor(by))
        return await self._consume(self._working().resolve_user_input(response), None)

    def session(self, session: Named) -> SessionHandle:
        """Return a session as it stands. Raises `SessionNotFound`."""
        return SessionHandle(self, self.call(session_view(self.app, session_id(session))))

    async def asession(self, session: Named) -> SessionHandle:
        """Await `session`."""
        return SessionHandle(self, await self._bridge.acall(session_view(self.app, session_id(session))))

    def pending(self, *, session: Named | None = None) -> Pending:
        """Return what waits for a human: the first thing to look at after a restart."""
        return self.call(self._pending(session))

    async def apending(self, *, session: Named | None = None) -> Pending:
        """Await `pending`."""
        return await self._bridge.acall(self._pending(session))

    async def _pending(self, session: Named | None) -> Pending:
        page = await self.app.list_pending_actions(
            PendingActionQuery(session_id=session_id(session) if session else None, limit=MOST_PENDING)
        )
        handles = [ApprovalHandle(self, action) for action in page.actions]
        lost = await lost_sessions(self.app)
        return Pending(handles, page.total, [name for name in lost if session is None or name == session_id(session)])

    async def aheads(self, query: HeadQuery) -> tuple[Sequence[StreamHead], str | None, int]:
        """Await a page of session heads: rows, the cursor of the next page, and the total."""
        page = await self._bridge.acall(self.app.session_store.heads(query))
        return page.rows, page.next, page.total

    def restart(self) -> None:
        """Drop the application with everything it holds, and build it anew on the same store."""
        self.call(self._shut())
        self.app = self._build()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run any coroutine on the lab's loop and wait for it."""
        if self._closed:
            work.close()
            raise LabClosed
        return self._bridge.call(work)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start any coroutine on the lab's loop and return at once; the way of callbacks."""
        return self._bridge.submit(work)

    async def acall(self, work: Coroutine[Any, Any, T]) -> T:
        """Await any coroutine that runs on the lab's loop."""
        return await self._bridge.acall(work)

    def timings(self, session: Named | None = None) -> tuple[TimingRecord, ...]:
        """Return the timing records of a session, by handle, id or public reference, or of all; oldest first.

        They are what this process has seen lately and what is kept beside the store, each once.
        """
        return self._timings_read(None if session is None else session_id(session)).records

    async def atimings(self, session: Named | None = None) -> tuple[TimingRecord, ...]:
        """Await `timings`."""
        return (await self.acall(self._timings(None if session is None else session_id(session)))).records

    def _timings_read(self, session: str | None) -> TimingsRead:
        return self.call(self._timings(session))

    async def _timings(self, session: str | None) -> TimingsRead:
        return await gather_timings(self.app, self._timings_at, session)

    def _gathered(self, gather: Gather, ask: Ask) -> Data:
        return self.call(gather(self.app.session_store, ask))

    # The end.

    def check_quiet(self) -> None:
        """Raise `LabNotQuiet` for problems that nobody has read and sessions still at work; the last cell calls it."""
        unread = [f"{problem.type} in {problem.source}" for problem in self.problems.unread()]
        unread += [f"experiment {each.experiment.name} still runs" for each in self.experiments if not each.done]
        unread += [f"session {session_id} is still at work" for session_id in self.app.services.drives]
        if unread:
            raise LabNotQuiet(count=len(unread), problems="; ".join(unread))

    def close(self) -> None:
        """Interrupt what runs, close the store and stop the lab's loop; safe to call twice."""
        if self._closed:
            return
        if self._bridge.is_here():
            raise OnLabLoop
        self._closed = True
        atexit.unregister(self.close)
        try:
            self._bridge.submit(self._shut()).result(CLOSING_SECONDS)
        finally:
            self._bridge.close()

    async def _shut(self) -> None:
        await self._end_experiments()
        await self.app.aclose()

    def __enter__(self) -> Self:
        """Return the lab."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the lab."""
        self.close()

    def __repr__(self) -> str:
        """Say where the lab's store is and which agents it has."""
        agents = ", ".join(self.app.agent_names) or "none"
        return f"<Lab {self.where} ({'it only looks' if self._factory is None else f'agents: {agents}'})>"

    def _working(self) -> CayuApp:
        if self._closed:
            raise LabClosed
        if self._factory is None:
            raise InvalidInput("This lab only looks; open it with factory=build_app to run and decide.")
        return self.app

    async def _consume(self, events: AsyncGenerator[Event, None], on_event: OnEvent | None) -> SessionHandle:
        session_id = ""
        async with aclosing(events):
            async for event in events:
                session_id = event.session_id
                if on_event is not None:
                    self._tell(on_event, event)
        return SessionHandle(self, await session_view(self.app, session_id))

    def _tell(self, on_event: OnEvent, event: Event) -> None:
        try:
            on_event(event)
        except Exception as error:  # noqa: BLE001 - a watcher never fails a run
            self.problems.keep("on_event", error, event.session_id)


async def _awaited(made: Any) -> Any:
    return await made
