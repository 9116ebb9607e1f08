"""The loop: runs, events and their order, limits, provider errors, refusals, many sessions at once, failing sinks."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from runtime.support import (
    SESSION,
    FakeTool,
    StoreProxy,
    assert_consistent,
    calls,
    log_of,
    logged,
    make_app,
    new_run,
    next_turn,
    play,
    status_of,
    types_of,
)

from cayu import AgentSpec, CayuApp, Event, Message, ResumeRequest, RunRequest, RuntimeConfig, run_to_completion
from cayu.environments import Environment, EnvironmentSpec
from cayu.errors import (
    CayuError,
    InvalidInput,
    NotRegistered,
    ProviderError,
    SessionAlreadyExists,
    SessionNotFound,
    SessionRunning,
    StoreClosed,
    StoreFull,
)
from cayu.events import EventType as E
from cayu.identity import ExecutionProfileBehaviorIdentity
from cayu.knowledge import KnowledgeAccessScope, KnowledgeEntry
from cayu.observability.sinks import EventSink, InMemoryEventSink
from cayu.providers.base import ModelProvider, ModelRequest, ModelStreamEvent
from cayu.providers.scripted import ScriptedModelProvider
from cayu.runtime.drive import MOST_TIMEOUTS
from cayu.sessions import SessionStatus
from cayu.sessions.streams import HeadQuery, Unit
from cayu.storage import InMemoryKnowledgeStore, InMemorySessionStore, SQLiteSessionStore
from cayu.tools import ToolContext, ToolResult

USAGE = {"input_tokens": 11, "output_tokens": 4}


async def test_a_run_gives_its_text_its_usage_and_its_steps() -> None:
    first = [ModelStreamEvent.text_delta("let me see"), *calls("t"), ModelStreamEvent.completed("tool_calls", USAGE)]
    last = [*map(ModelStreamEvent.text_delta, ("all ", "done")), ModelStreamEvent.completed("stop", USAGE)]
    app = make_app(None, [first, last], [FakeTool("t")])
    outcome = await run_to_completion(app, new_run(title="T", labels={"k": "v"}))
    assert (outcome.session_id, outcome.status, outcome.final_text) == (SESSION, SessionStatus.COMPLETED, "all done")
    assert outcome.usage == {"input_tokens": 22, "output_tokens": 8}
    assert (outcome.model_steps, outcome.error, outcome.interruption) == (2, None, None)
    record = await app.get_session(SESSION)
    assert (record.title, record.labels, record.agent_name, record.model) == ("T", {"k": "v"}, "a", "m")
    assert (record.status, record.run_epoch) == (SessionStatus.COMPLETED, 1)
    await assert_consistent(app)


async def test_live_deltas_have_no_sequence_and_are_not_stored() -> None:
    batch = [ModelStreamEvent.thinking("hm", "sig"), *map(ModelStreamEvent.text_delta, ("a", "b"))]
    sink = InMemoryEventSink()
    app = make_app(None, [batch], event_sinks=[sink])
    events = await play(app.run(new_run()))
    live = [event for event in events if event.sequence is None]
    assert [(event.type, event.payload["text"]) for event in live] == [
        (E.MODEL_THINKING_DELTA, "hm"),
        (E.MODEL_TEXT_DELTA, "a"),
        (E.MODEL_TEXT_DELTA, "b"),
    ]
    kinds = [event.type for event in events]
    assert kinds.index(E.MODEL_TEXT_DELTA) < kinds.index(E.MODEL_COMPLETED)
    stored = (await log_of(app)).records
    assert [record.type for record in stored] == types_of(events)
    assert [event.sequence for event in sink.events] == [record.sequence for record in stored]
    assert len({event.id for event in events if event.sequence}) == len(stored)


class ReadingSink(EventSink):
    """Reads the store at every event and keeps what it had not found there."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.sequences: list[int | None] = []
        self.missing: list[int | None] = []

    async def emit(self, event: Event) -> None:
        loaded = await self._store.load(event.session_id)
        self.sequences.append(event.sequence)
        if (event.sequence, event.type) not in {(record.sequence, record.type) for record in loaded.records}:
            self.missing.append(event.sequence)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_events_arrive_in_order_and_only_after_their_commit(kind: str, tmp_path: Path) -> None:
    store = InMemorySessionStore() if kind == "memory" else SQLiteSessionStore(tmp_path / "s.db")
    sink = ReadingSink(store)
    app = make_app(store, [calls("t", "t", "t"), calls("t"), "done"], [FakeTool("t")], event_sinks=[sink])
    seen: list[int] = []
    async for event in app.run(new_run()):
        if event.sequence is not None:
            seen.append(event.sequence)
            assert event.sequence <= (await log_of(app)).head.state.version
    assert seen == sink.sequences == list(range(1, len(seen) + 1))
    assert sink.missing == []
    await app.aclose()


async def test_the_run_waits_for_its_consumer() -> None:
    tool = FakeTool("t")
    app = make_app(None, [calls("t"), "done"], [tool])
    async for event in app.run(new_run()):
        if event.type == E.TOOL_STARTED:
            await asyncio.sleep(0.02)
            assert tool.calls == []


async def test_max_steps_ends_as_interrupted_and_a_new_turn_goes_on() -> None:
    app = make_app(None, [calls("t"), calls("t"), calls("t"), "done"], [FakeTool("t")])
    outcome = await run_to_completion(app, new_run(max_steps=2))
    assert outcome.status == SessionStatus.INTERRUPTED
    assert outcome.model_steps == 2
    assert outcome.interruption == {"reason": "limit_reached", "limit": "max_steps"}
    assert await logged(app, E.SESSION_LIMIT_REACHED) == [{"limit": "max_steps", "value": 2}]
    await assert_consistent(app)
    outcome = await run_to_completion(app, next_turn(max_steps=2))
    assert (outcome.status, outcome.final_text) == (SessionStatus.COMPLETED, "done")


@pytest.mark.parametrize("steps", [0, -1, 1.0, "1"])
def test_max_steps_is_a_positive_whole_number(steps: Any) -> None:
    with pytest.raises(ValidationError):
        new_run(max_steps=steps)


class Misbehaving(ModelProvider):
    """Plays its one stream at every request until it is told to behave."""

    name = "scripted"

    def __init__(self, *stream: ModelStreamEvent | BaseException) -> None:
        self._stream = stream
        self.behaves = False

    @property
    def execution_profile_identity(self) -> ExecutionProfileBehaviorIdentity:
        return ExecutionProfileBehaviorIdentity(name="p", behavior_version="1", implementation_version="1")

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelStreamEvent]:
        if self.behaves:
            yield ModelStreamEvent.text_delta("recovered")
            yield ModelStreamEvent.completed()
            return
        for each in self._stream:
            if isinstance(each, BaseException):
                raise each
            yield each


def completed_with(**payload: Any) -> ModelStreamEvent:
    return ModelStreamEvent("completed", payload=payload)


SECRET = "the secret words"
NO_OBJECT: Any = [SECRET]
PROVIDER_FAULTS: dict[str, tuple[ModelStreamEvent | BaseException, ...]] = {
    "raises": (RuntimeError(SECRET),),
    "raises after text": (ModelStreamEvent.text_delta("half an ans"), RuntimeError(SECRET)),
    "raises a provider error": (ProviderError(SECRET, code="overloaded"),),
    "raises a provider error without a code": (ProviderError(SECRET),),
    "raises another of ours": (StoreFull(path=SECRET),),
    "an error event": (ModelStreamEvent.text_delta("half"), ModelStreamEvent.error("overloaded")),
    "ends without completed": (ModelStreamEvent.text_delta("half"),),
    "nothing at all": (),
    "arguments with NaN": (ModelStreamEvent.tool_call("t", {"x": float("nan")}), ModelStreamEvent.completed()),
    "arguments that are no object": (ModelStreamEvent.tool_call("t", NO_OBJECT), ModelStreamEvent.completed()),
    "a reason outside JSON": (ModelStreamEvent.text_delta("x"), completed_with(finish_reason=object())),
}


@pytest.mark.parametrize("stream", PROVIDER_FAULTS.values(), ids=PROVIDER_FAULTS)
async def test_a_provider_that_fails_ends_the_run_with_a_code_and_no_content(
    stream: tuple[ModelStreamEvent | BaseException, ...],
) -> None:
    provider = Misbehaving(*stream)
    tool = FakeTool("t")
    app = CayuApp()
    app.register_provider(provider)
    app.register_agent(AgentSpec(name="a", model="m"), tools=[tool])
    outcome = await run_to_completion(app, new_run())
    assert outcome.status == SessionStatus.FAILED
    assert outcome.error is not None
    assert outcome.error["code"] == "provider_failed"
    assert outcome.error["detail"]
    stored = (await log_of(app)).records
    assert [record.type for record in stored] == ["session.started", "model.started", "model.error", "session.failed"]
    assert all(SECRET.encode() not in record.body and b"half" not in record.body for record in stored)
    assert tool.calls == []
    await assert_consistent(app)
    provider.behaves = True
    again = await run_to_completion(app, next_turn())
    assert (again.status, again.final_text, again.error) == (SessionStatus.COMPLETED, "recovered", None)


@pytest.mark.parametrize("field", ["id", "signature"])
async def test_lone_surrogates_in_a_providers_marks_do_no_harm(field: str) -> None:
    lone = "a\ud800"
    batch = calls("t") if field == "signature" else [ModelStreamEvent.tool_call("t", {}, lone)]
    thinking = [ModelStreamEvent.thinking("hm", lone)] if field == "signature" else []
    app = make_app(None, [[*thinking, *batch], "done"], [FakeTool("t")])
    assert (await run_to_completion(app, new_run())).status == SessionStatus.COMPLETED


class ClosingProvider(Misbehaving):
    """Notes when its stream was closed."""

    closed = False

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelStreamEvent]:
        try:
            yield ModelStreamEvent.completed()
            yield ModelStreamEvent.text_delta("never")
        finally:
            self.closed = True


async def test_a_providers_stream_is_closed_once_its_answer_is_complete() -> None:
    provider = ClosingProvider()
    app = CayuApp()
    app.register_provider(provider)
    app.register_agent(AgentSpec(name="a", model="m"))
    async for event in app.run(new_run()):
        if event.type == E.MODEL_COMPLETED:
            assert provider.closed
    assert await status_of(app) == SessionStatus.COMPLETED


@pytest.mark.requirement("A045")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_an_id_that_exists_is_refused_and_nothing_is_written(kind: str, tmp_path: Path) -> None:
    store = InMemorySessionStore() if kind == "memory" else SQLiteSessionStore(tmp_path / "s.db")
    tool = FakeTool("t")
    app = make_app(store, [calls("t"), "done"], [tool])
    await play(app.run(new_run()))
    before = await log_of(app)
    with pytest.raises(SessionAlreadyExists, match=SESSION):
        await play(app.run(new_run()))
    after = await log_of(app)
    assert (after.head, list(after.records)) == (before.head, list(before.records))
    assert len(tool.calls) == 1
    await app.aclose()


@pytest.mark.requirement("A045")
async def test_of_two_runs_with_one_id_one_begins(tmp_path: Path) -> None:
    apps = [make_app(SQLiteSessionStore(tmp_path / "s.db")) for _ in range(2)]
    found = await asyncio.gather(*(play(app.run(new_run())) for app in apps), return_exceptions=True)
    assert sorted(type(each).__name__ for each in found) == ["SessionAlreadyExists", "list"]
    await assert_consistent(apps[0])
    await asyncio.gather(*(app.aclose() for app in apps))


async def test_an_id_is_minted_when_none_is_given() -> None:
    app = make_app()
    one, two = [await run_to_completion(app, RunRequest(agent_name="a", messages=new_run().messages)) for _ in "12"]
    assert one.session_id != two.session_id
    assert all(each.status == SessionStatus.COMPLETED for each in (one, two))


@pytest.mark.parametrize(
    "request_, spec",
    [
        (RunRequest(agent_name="who", messages=new_run().messages), AgentSpec(name="a", model="m")),
        (new_run(environment_name="where"), AgentSpec(name="a", model="m")),
        (new_run(), AgentSpec(name="a", model="m", provider_name="which")),
    ],
    ids=["agent", "environment", "provider"],
)
async def test_what_is_not_registered_is_refused_and_nothing_is_written(request_: RunRequest, spec: AgentSpec) -> None:
    app = CayuApp()
    provider = ScriptedModelProvider(["done"])
    app.register_provider(provider)
    app.register_agent(spec)
    with pytest.raises(NotRegistered):
        await play(app.run(request_))
    assert (await app.session_store.heads(HeadQuery())).total == 0
    assert provider.requests == []


async def test_a_resume_under_an_app_that_lacks_the_agent_is_refused() -> None:
    store = InMemorySessionStore()
    await play(make_app(store).run(new_run()))
    before = await store.load(SESSION)
    bare = CayuApp(session_store=store)
    with pytest.raises(NotRegistered):
        await play(bare.resume(next_turn()))
    after = await store.load(SESSION)
    assert before is not None
    assert after is not None
    assert after.records == before.records


async def test_a_session_that_is_not_there_is_not_found() -> None:
    app = make_app()
    for call in (app.resume(next_turn()), app.recover_incomplete_session(SESSION)):
        with pytest.raises(SessionNotFound, match=SESSION):
            await play(call)
    with pytest.raises(SessionNotFound):
        await app.get_session(SESSION)


@pytest.mark.requirement("A047")
@pytest.mark.parametrize("same_app", [True, False])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_running_session_is_not_resumed_and_nothing_is_written(
    kind: str, same_app: bool, tmp_path: Path
) -> None:
    def opened() -> Any:
        return SQLiteSessionStore(tmp_path / "s.db") if kind == "sqlite" else store

    store = InMemorySessionStore()
    finish = asyncio.Event()

    async def wait(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        await finish.wait()
        return ToolResult(content="ok")

    tool = FakeTool("t", wait)
    batches = [calls("t"), "done", "more"]
    app = make_app(opened(), batches, [tool])
    other = app if same_app else make_app(opened(), batches, [tool])
    running = asyncio.create_task(play(app.run(new_run())))
    await tool.entered.wait()
    before = await log_of(app)
    with pytest.raises(SessionRunning, match="at work"):
        await play(other.resume(next_turn()))
    with pytest.raises(SessionRunning):
        await play(other.recover_incomplete_session(SESSION))
    after = await log_of(app)
    assert (after.head, list(after.records)) == (before.head, list(before.records))
    finish.set()
    assert types_of(await running)[-1] == E.SESSION_COMPLETED
    await app.aclose()
    await other.aclose()


@pytest.mark.requirement("A046")
async def test_a_session_and_messages_are_enough_to_begin_the_next_turn() -> None:
    app = make_app(None, ["one", "two", "three"])
    await play(app.run(new_run()))
    events = await play(app.resume(ResumeRequest(session_id=SESSION, messages=(Message.text("user", "and then?"),))))
    assert events[0].type == "session.resumed"
    assert events[-1].type == "session.completed"
    outcome = await run_to_completion(app, next_turn())
    assert (outcome.final_text, (await app.get_session(SESSION)).run_epoch) == ("three", 3)
    view = await assert_consistent(app)
    assert [message.plain_text for message in view.transcript] == ["go", "one", "and then?", "two", "more", "three"]


async def test_the_next_turn_stands_in_the_request() -> None:
    provider = ScriptedModelProvider(["one", "two"])
    app = CayuApp()
    app.register_provider(provider)
    app.register_agent(AgentSpec(name="a", model="m", system_prompt="be kind"))
    await play(app.run(new_run()))
    await play(app.resume(next_turn()))
    asked = [(message.role, message.plain_text) for message in provider.requests[-1].messages]
    assert asked == [("system", "be kind"), ("user", "go"), ("assistant", "one"), ("user", "more")]


@pytest.mark.requirement("A010")
async def test_service_data_may_change_between_turns() -> None:
    scope = KnowledgeAccessScope(allowed_namespaces=("default",))
    knowledge = InMemoryKnowledgeStore()
    spec = EnvironmentSpec(
        name="e",
        execution_profile_identity=ExecutionProfileBehaviorIdentity(
            name="e", behavior_version="1", implementation_version="1"
        ),
    )
    store = InMemorySessionStore()

    def build() -> CayuApp:
        app = make_app(store, ["one", "two"])
        environment = Environment(spec, knowledge_store=knowledge.bind(scope), knowledge_access_scope=scope)
        app.register_environment(environment, default=True)
        return app

    await play(build().run(new_run()))
    await knowledge.create_entry(KnowledgeEntry(id="k", text="new"))
    assert (await run_to_completion(build(), next_turn())).final_text == "two"


async def test_two_sessions_at_once_do_not_mix() -> None:
    barrier = asyncio.Barrier(2)

    async def meet(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        async with asyncio.timeout(2):
            await barrier.wait()
        return ToolResult(content=ctx.session_id)

    app = make_app(None, [calls("t"), "done"], [FakeTool("t", meet)])
    left, right = await asyncio.gather(*(run_to_completion(app, new_run(name)) for name in ("left", "right")))
    for name, outcome in (("left", left), ("right", right)):
        assert {event.session_id for event in outcome.events} == {name}
        assert outcome.tool_calls[0].content == name
        await assert_consistent(app, name)


async def test_fifty_sessions_on_one_file_lose_nothing(tmp_path: Path) -> None:
    apps = [make_app(SQLiteSessionStore(tmp_path / "s.db"), [calls("t", "t"), "done"], [FakeTool("t")]) for _ in "ab"]
    names = [f"s{number}" for number in range(50)]
    runs = (run_to_completion(apps[number % 2], new_run(name)) for number, name in enumerate(names))
    outcomes = await asyncio.gather(*runs)
    assert {outcome.status for outcome in outcomes} == {SessionStatus.COMPLETED}
    for name, outcome in zip(names, outcomes, strict=True):
        loaded = await log_of(apps[0], name)
        assert types_of(outcome.events) == [record.type for record in loaded.records]
        await assert_consistent(apps[1], name)
    await asyncio.gather(*(app.aclose() for app in apps))


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_one_app_serves_successive_event_loops(kind: str, tmp_path: Path) -> None:
    store = InMemorySessionStore() if kind == "memory" else SQLiteSessionStore(tmp_path / "s.db")
    app = make_app(store, [calls("t"), "one", "two"], [FakeTool("t")])
    assert asyncio.run(run_to_completion(app, new_run())).final_text == "one"
    assert asyncio.run(run_to_completion(app, next_turn())).final_text == "two"
    asyncio.run(app.aclose())


class BadSink(EventSink):
    """Raises, or sleeps, at every event."""

    def __init__(self, error: BaseException | None) -> None:
        self._error = error
        self.seen = 0

    async def emit(self, event: Event) -> None:
        self.seen += 1
        if self._error is not None:
            raise self._error
        await asyncio.sleep(30)


@pytest.mark.parametrize("error", [ValueError("x"), asyncio.CancelledError(), TimeoutError(), None], ids=repr)
async def test_a_sink_that_fails_or_is_slow_never_fails_a_run(error: BaseException | None) -> None:
    bad, good = BadSink(error), InMemoryEventSink()
    config = RuntimeConfig(sink_timeout_seconds=0.005)
    app = make_app(None, [calls("t"), "done"], [FakeTool("t")], event_sinks=[bad, good], config=config)
    events = await play(app.run(new_run()))
    assert types_of(events)[-1] == E.SESSION_COMPLETED
    assert [event.type for event in good.events] == types_of(events)
    assert bad.seen == (len(good.events) if error is not None else MOST_TIMEOUTS)


async def test_a_store_that_fails_for_good_ends_the_run_with_its_error() -> None:
    async def full(unit: Unit) -> None:
        if unit.expected_version:
            raise StoreFull(path="x")

    app = make_app(StoreProxy(InMemorySessionStore(), before=full))
    with pytest.raises(StoreFull):
        await play(app.run(new_run()))
    assert app.services.drives == {}


async def test_a_fault_of_the_runtime_itself_is_recorded_and_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    from cayu.runtime import drive

    async def broken(*_: object) -> None:
        raise LookupError(SECRET)

    monkeypatch.setattr(drive, "plan_round", broken)
    app = make_app(None, [calls("t"), "done"], [FakeTool("t")])
    with pytest.raises(LookupError):
        await play(app.run(new_run()))
    view = await assert_consistent(app)
    assert view.status == SessionStatus.FAILED
    assert view.error == {"code": "runtime_error", "detail": "LookupError"}


async def test_an_app_that_closes_interrupts_what_still_runs() -> None:
    async def sleep(ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        await asyncio.sleep(30)
        return ToolResult(content="never")

    tool = FakeTool("t", sleep)
    async with make_app(None, [calls("t"), "done"], [tool]) as app:
        running = asyncio.create_task(play(app.run(new_run())))
        await tool.entered.wait()
    await asyncio.wait_for(running, 2)
    assert await status_of(app) == SessionStatus.INTERRUPTED
    await app.aclose()


async def test_errors_are_typed() -> None:
    assert issubclass(SessionRunning, CayuError)
    app = make_app()
    with pytest.raises(ValidationError):
        RunRequest(agent_name="a", messages=())
    with pytest.raises(ValidationError):
        new_run("x" * 513)
    assert (await run_to_completion(app, new_run("x" * 512))).status == SessionStatus.COMPLETED


PROCESS = """
import asyncio, sys
sys.path.insert(0, {tests!r})
from runtime.support import *
from cayu.storage import SQLiteSessionStore
from cayu.tools import AlwaysRequireApprovalToolPolicy
from cayu import run_to_completion

async def main(phase):
    app = make_app(SQLiteSessionStore({path!r}), [calls("t"), "first", "second"], [FakeTool("t")],
                   AlwaysRequireApprovalToolPolicy())
    async with app:
        if phase == "start":
            print((await run_to_completion(app, new_run())).status)
        else:
            [waiting] = await waiting_ids(app)
            print((await run_to_completion(app, approval(waiting))).final_text)
            outcome = await run_to_completion(app, next_turn())
            print(outcome.final_text, [m.plain_text for m in (await assert_consistent(app)).transcript])

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.requirement("A003", "A050")
def test_a_second_process_lists_decides_and_resumes(tmp_path: Path) -> None:
    script = tmp_path / "app.py"
    script.write_text(PROCESS.format(tests=str(Path(__file__).parents[1]), path=str(tmp_path / "s.db")))

    def run(phase: str) -> str:
        done = subprocess.run([sys.executable, script, phase], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert run("start") == "interrupted\n"
    assert run("resume") == "first\nsecond ['go', '', '', 'first', 'more', 'second']\n"


async def test_an_application_that_closes_stops_also_what_has_not_claimed_its_session_yet() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def hold(unit: Unit) -> None:
        begun.set()
        await go.wait()

    tool = FakeTool("t")
    store = StoreProxy(InMemorySessionStore(), before=hold)
    app = make_app(store, [calls("t"), "done"], [tool])
    running = asyncio.create_task(play(app.run(new_run())))
    await begun.wait()
    closing = asyncio.create_task(app.aclose())
    await asyncio.sleep(0)
    go.set()
    await asyncio.gather(running, closing)
    assert tool.calls == []
    with pytest.raises(StoreClosed):
        await play(app.run(new_run(session_id="another")))


@pytest.mark.parametrize("where", ["memory", "sqlite"])
async def test_an_id_that_no_store_keeps_is_refused_or_not_found(where: str, tmp_path: Path) -> None:
    store = InMemorySessionStore() if where == "memory" else SQLiteSessionStore(tmp_path / "s.db")
    async with make_app(store, ["done"], []) as app:
        with pytest.raises((InvalidInput, SessionNotFound)):
            await play(app.recover_incomplete_session("\ud800"))
        with pytest.raises((InvalidInput, SessionNotFound)):
            await app.get_session("\ud800")
