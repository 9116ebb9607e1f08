"""Tests execution profiles: what is declared, what a rebuilt application may go on with, and what is refused."""

import inspect
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from runtime.behaviour import (
    CLASS_OF,
    COMPONENTS,
    FIELDS,
    SESSION,
    TOOL,
    Parts,
    Rig,
    build,
    declared,
    following,
    image,
    start,
)

from cayu import (
    CayuApp,
    Environment,
    EnvironmentSpec,
    ExecutionProfileAdoptionIntent,
    ExecutionProfileBehaviorIdentity,
    ExecutionProfileMismatchError,
    KnowledgeAccessScope,
    KnowledgeEntry,
    SessionStatus,
    SQLiteKnowledgeStore,
    ToolEffect,
    ToolPolicy,
    ToolSpec,
    run_to_completion,
)
from cayu.approvals import ToolApprovalDecision, ToolApprovalRequest
from cayu.errors import (
    ExecutionProfileAdoptionRejected,
    ExecutionProfileError,
    ExecutionProfileMigrationRequired,
    SessionNeedsRecovery,
    SessionRunning,
)
from cayu.identity import COMPONENT_CLASSES, DifferenceCategory, ExecutionProfile, compare_profiles
from cayu.runtime import AdoptionRequest, AdoptionVerdict, ExecutionProfilePolicy
from cayu.storage import InMemoryKnowledgeStore
from cayu.tools import ToolPolicyDecision

TESTS = Path(__file__).resolve().parents[1]
INTENT = ExecutionProfileAdoptionIntent(
    idempotency_key="change-7", reason="The lookup reads a new index.", requested_by="ann@example.org"
)
REJECTED = "session.execution_profile.rejected"
DECIDED = "session.execution_profile.decided"
EACH_CHANGE = [(component, name) for component in COMPONENTS for name in FIELDS]
OPAQUE = [*COMPONENTS, "provider"]

Act = Callable[[Rig], AsyncIterator[Any]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


async def play(stream: AsyncIterator[Any]) -> list[Any]:
    return [event async for event in stream]


async def completed(path: Path, parts: Parts | None = None) -> Rig:
    """A session that has run to its end under an application that is closed again."""
    rig = build(path, parts)
    assert (await run_to_completion(rig.app, start())).status == SessionStatus.COMPLETED
    await rig.app.aclose()
    return rig


async def paused(path: Path, parts: Parts | None = None) -> Rig:
    """A session that waits for an approval, its application closed."""
    rig = build(path, replace(parts or Parts(), decision=ToolPolicyDecision.REQUIRE_APPROVAL))
    assert (await run_to_completion(rig.app, start())).status == SessionStatus.INTERRUPTED
    await rig.app.aclose()
    return rig


async def cut_off(path: Path, where: str, parts: Parts | None = None) -> None:
    """Leave at `path` what a process leaves that is lost while its model answers or while its tool runs."""
    lived = path.with_name("lived.db")

    def hook() -> None:
        if not path.exists():
            image(lived, path)

    rig = build(lived, parts, in_model=hook if where == "model" else None, in_tool=hook if where == "tool" else None)
    await run_to_completion(rig.app, start())
    await rig.app.aclose()


def approve(action: str, decision: ToolApprovalDecision = ToolApprovalDecision.APPROVE) -> ToolApprovalRequest:
    return ToolApprovalRequest(session_id=SESSION, approval_id=action, decision=decision)


async def pending(rig: Rig) -> str:
    return (await rig.app.list_pending_actions()).actions[0].id


# Declarations


@pytest.mark.requirement("A005")
def test_a_declaration_has_exactly_three_fields() -> None:
    assert tuple(ExecutionProfileBehaviorIdentity.model_fields) == FIELDS
    whole = dict.fromkeys(FIELDS, "1")
    assert ExecutionProfileBehaviorIdentity(**whole).model_dump() == whole
    for extra in ("configuration", "config", "secret", "metadata"):
        with pytest.raises(ValidationError, match="Extra inputs"):
            ExecutionProfileBehaviorIdentity(**whole, **{extra: "x"})


@pytest.mark.requirement("A005")
@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("bad", [None, "", 1, "x" * 257])
def test_each_field_is_some_text(name: str, bad: object) -> None:
    whole: dict[str, Any] = dict.fromkeys(FIELDS, "1")
    with pytest.raises(ValidationError):
        ExecutionProfileBehaviorIdentity(**{**whole, name: bad})
    del whole[name]
    with pytest.raises(ValidationError):
        ExecutionProfileBehaviorIdentity(**whole)


@pytest.mark.requirement("A006")
def test_where_a_declaration_is_made() -> None:
    assert "execution_profile_identity" in ToolSpec.model_fields
    assert "execution_profile_identity" in EnvironmentSpec.model_fields
    assert isinstance(inspect.getattr_static(ToolPolicy, "execution_profile_identity"), property)


@pytest.mark.requirement("A004", "A006")
async def test_a_rebuilt_application_with_the_same_declarations_goes_on(path: Path) -> None:
    await completed(path)
    rig = build(path)
    outcome = await run_to_completion(rig.app, following())
    assert (outcome.status, outcome.final_text) == (SessionStatus.COMPLETED, "done again")
    assert rig.effects == (2, 1)
    assert REJECTED not in await rig.types()
    await rig.app.aclose()


@pytest.mark.requirement("A004", "A007")
@pytest.mark.parametrize("component,name", EACH_CHANGE)
async def test_any_change_of_any_declaration_is_refused(path: Path, component: str, name: str) -> None:
    await completed(path)
    rig = build(path, Parts().changed(component, name))
    with pytest.raises(ExecutionProfileMismatchError) as caught:
        await run_to_completion(rig.app, following())
    error = caught.value
    assert error.session_id == SESSION
    assert error.changed_component_classes == (CLASS_OF[component],)
    assert error.differences == ((CLASS_OF[component], "other_or_unknown"),)
    assert error.boundary == "resume"
    assert error.expected_profile_fingerprint != error.candidate_profile_fingerprint
    assert rig.effects == (0, 0)
    await rig.app.aclose()
    again = build(path)
    assert (await run_to_completion(again.app, following())).status == SessionStatus.COMPLETED
    await again.app.aclose()


async def test_a_tool_more_or_less_is_refused(path: Path) -> None:
    rig = await completed(path)
    for tools in ([], [rig.tool, build(path).tool]):
        other = build(path)
        app = CayuApp(session_store=other.store)
        app.register_provider(other.provider)
        if len(tools) == 2:
            tools[1].spec = tools[1].spec.model_copy(update={"name": "second"})
        spec = other.app.services.registry.assemble("ann", "lab").agent
        policy = other.app.services.registry.assemble("ann", "lab").policy
        app.register_agent(spec, tools=tools, tool_policy=policy)
        environment = EnvironmentSpec(name="lab", execution_profile_identity=declared("environment"))
        app.register_environment(Environment(environment))
        with pytest.raises(ExecutionProfileMismatchError) as caught:
            await run_to_completion(app, following())
        assert caught.value.differences == (("tools", "other_or_unknown"),)
        await app.aclose()


async def test_another_scope_is_another_environment(path: Path) -> None:
    def application(scope: KnowledgeAccessScope) -> CayuApp:
        rig = build(path)
        environment = Environment(
            EnvironmentSpec(name="safe", execution_profile_identity=declared("environment")),
            knowledge_store=InMemoryKnowledgeStore().bind(scope),
        )
        rig.app.register_environment(environment)
        return rig.app

    narrow = KnowledgeAccessScope(allowed_namespaces=("lab",))
    app = application(narrow)
    await run_to_completion(app, start().model_copy(update={"environment_name": "safe"}))
    await app.aclose()
    app = application(KnowledgeAccessScope(allow_all_namespaces=True))
    with pytest.raises(ExecutionProfileMismatchError) as caught:
        await run_to_completion(app, following())
    assert caught.value.changed_component_classes == ("environment",)
    await app.aclose()
    app = application(narrow)
    assert (await run_to_completion(app, following())).status == SessionStatus.COMPLETED
    await app.aclose()


# Opaque parts


@pytest.mark.requirement("A008", "A017", "A018")
@pytest.mark.parametrize("component", OPAQUE)
async def test_an_undeclared_part_does_not_survive_a_rebuild(path: Path, component: str) -> None:
    parts = Parts().without(component)
    await completed(path, parts)
    rig = build(path, parts)
    with pytest.raises(ExecutionProfileMismatchError) as caught:
        await run_to_completion(rig.app, following())
    assert caught.value.differences == ((CLASS_OF[component], "opaque_identity"),)
    assert rig.effects == (0, 0)
    await rig.app.aclose()


@pytest.mark.parametrize("component", OPAQUE)
async def test_an_undeclared_part_serves_the_application_that_has_it(path: Path, component: str) -> None:
    rig = build(path, Parts().without(component))
    await run_to_completion(rig.app, start())
    assert (await run_to_completion(rig.app, following())).status == SessionStatus.COMPLETED
    await rig.app.aclose()


@pytest.mark.requirement("A008")
async def test_an_undeclared_part_is_told_apart_at_an_approval_too(path: Path) -> None:
    parts = replace(Parts().without("tool"), decision=ToolPolicyDecision.REQUIRE_APPROVAL)
    await paused(path, parts)
    rig = build(path, parts)
    with pytest.raises(ExecutionProfileMismatchError) as caught:
        await run_to_completion(rig.app, approve(await pending(rig)))
    assert caught.value.differences == (("tools", "opaque_identity"),)
    assert rig.effects == (0, 0)
    await rig.app.aclose()


@pytest.mark.requirement("A017", "A018")
async def test_each_changed_class_has_one_of_two_categories(path: Path) -> None:
    await completed(path, Parts().without("tool"))
    parts = Parts().without("tool").changed("policy").changed("environment").changed("provider")
    rig = build(path, parts)
    with pytest.raises(ExecutionProfileMismatchError) as caught:
        await run_to_completion(rig.app, following())
    assert dict(caught.value.differences) == {
        "provider": "other_or_unknown",
        "tools": "opaque_identity",
        "tool_policy": "other_or_unknown",
        "environment": "other_or_unknown",
    }
    assert caught.value.changed_component_classes == tuple(name for name, _ in caught.value.differences)
    assert {str(category) for category in DifferenceCategory} == {"opaque_identity", "other_or_unknown"}
    await rig.app.aclose()


@pytest.mark.requirement("A017")
def test_differences_are_bounded_by_the_classes() -> None:
    digest = build(Path("unused.db")).app.services.registry.assemble("ann", "lab").profile.components["agent"]
    everything = ExecutionProfile(dict.fromkeys(COMPONENT_CLASSES, digest))
    comparison = compare_profiles(everything, ExecutionProfile({}))
    assert [name for name, _ in comparison.differences] == list(COMPONENT_CLASSES)
    assert len(comparison.differences) == 8
    assert compare_profiles(everything, everything).equal


@pytest.mark.requirement("A020")
@pytest.mark.parametrize("component", OPAQUE)
async def test_a_declaration_made_later_repairs_nothing(path: Path, component: str) -> None:
    await completed(path, Parts().without(component))
    for _ in range(2):
        rig = build(path)
        with pytest.raises(ExecutionProfileMismatchError) as caught:
            await run_to_completion(rig.app, following())
        assert caught.value.differences == ((CLASS_OF[component], "opaque_identity"),)
        assert rig.effects == (0, 0)
        await rig.app.aclose()


# Before any effect


async def _resume(rig: Rig) -> AsyncIterator[Any]:
    async for event in rig.app.resume(following()):
        yield event


async def _approve(rig: Rig) -> AsyncIterator[Any]:
    async for event in rig.app.resolve_tool_approval(approve(await pending(rig))):
        yield event


async def _recover(rig: Rig) -> AsyncIterator[Any]:
    async for event in rig.app.recover_incomplete_session(SESSION):
        yield event


BOUNDARIES: dict[str, tuple[Callable[[Path], Any], Act, ToolPolicyDecision]] = {
    "resume": (completed, _resume, ToolPolicyDecision.ALLOW),
    "approval": (paused, _approve, ToolPolicyDecision.REQUIRE_APPROVAL),
    "recovery": (lambda path: cut_off(path, "tool"), _recover, ToolPolicyDecision.ALLOW),
}


@pytest.mark.requirement("A007", "A012", "A013", "A021")
@pytest.mark.parametrize("boundary", list(BOUNDARIES))
@pytest.mark.parametrize("component", OPAQUE)
async def test_a_mismatch_comes_before_any_effect_and_adds_only_its_record(
    path: Path, boundary: str, component: str
) -> None:
    prepare, act, decision = BOUNDARIES[boundary]
    await prepare(path)
    same = replace(Parts(), decision=decision)
    before: list[tuple[str, dict[str, Any]]] = []
    for attempt in range(2):
        rig = build(path, same.changed(component))
        before = before or await rig.log()
        with pytest.raises(ExecutionProfileMismatchError) as caught:
            await play(act(rig))
        assert rig.effects == (0, 0)
        log = await rig.log()
        assert log[: len(before)] == before
        added = log[len(before) :]
        assert [type for type, _ in added] == [REJECTED], f"attempt {attempt}"
        error = caught.value
        assert added[0][1] == {
            "boundary": boundary,
            "expected_profile_fingerprint": error.expected_profile_fingerprint,
            "candidate_profile_fingerprint": error.candidate_profile_fingerprint,
            "changed_component_classes": [CLASS_OF[component]],
            "differences": [[CLASS_OF[component], "other_or_unknown"]],
        }
        assert error.boundary == boundary
        await rig.app.aclose()
    right = build(path, same)
    await play(act(right))
    assert (await right.app.get_session(SESSION)).status == SessionStatus.COMPLETED
    await right.app.aclose()


@pytest.mark.requirement("A012")
async def test_a_mismatch_is_never_waved_through(path: Path) -> None:
    asked = []

    class Generous(ExecutionProfilePolicy):
        async def decide(self, request: AdoptionRequest) -> AdoptionVerdict:
            asked.append(request)
            return AdoptionVerdict.ADOPT

    await completed(path)
    rig = build(path, Parts().changed("tool"), policy=Generous())
    with pytest.raises(ExecutionProfileMismatchError):
        await run_to_completion(rig.app, following())
    assert asked == []
    assert (await rig.types())[-1] == REJECTED
    await rig.app.aclose()


@pytest.mark.requirement("A012")
async def test_another_candidate_is_another_refusal(path: Path) -> None:
    await completed(path)
    for component in ("tool", "policy"):
        rig = build(path, Parts().changed(component))
        with pytest.raises(ExecutionProfileMismatchError):
            await run_to_completion(rig.app, following())
        await rig.app.aclose()
    reopened = build(path)
    assert (await reopened.types()).count(REJECTED) == 2
    await reopened.app.aclose()


@pytest.mark.requirement("A011")
async def test_a_declared_tool_is_still_authorised(path: Path) -> None:
    rig = build(path, replace(Parts(), decision=ToolPolicyDecision.DENY))
    outcome = await run_to_completion(rig.app, start())
    assert rig.effects == (2, 0)
    assert [(call.state, call.code) for call in outcome.tool_calls] == [("blocked", "policy_denied")]
    await rig.app.aclose()


@pytest.mark.requirement("A010")
async def test_stored_data_may_change_under_the_same_contract(path: Path) -> None:
    scope = KnowledgeAccessScope(allowed_namespaces=("lab",))
    texts = []
    for number, request in enumerate((start().model_copy(update={"environment_name": "shelf"}), following())):
        knowledge = SQLiteKnowledgeStore(path.with_name("knowledge.db"))
        await knowledge.create_entry(KnowledgeEntry(id=f"e{number}", text="A cold room.", namespace="lab"))
        rig = build(path)
        spec = EnvironmentSpec(name="shelf", execution_profile_identity=declared("environment"))
        rig.app.register_environment(Environment(spec, knowledge_store=knowledge.bind(scope)))
        texts.append((await run_to_completion(rig.app, request)).final_text)
        assert len(await knowledge.list_entries(scope)) == number + 1
        await rig.app.aclose()
        await knowledge.aclose()
    assert texts == ["done", "done again"]


# Adoption


class Verdict(ExecutionProfilePolicy):
    """Decides alike every time, and remembers what it was asked."""

    def __init__(self, verdict: AdoptionVerdict) -> None:
        self.asked: list[AdoptionRequest] = []
        self._verdict = verdict

    async def decide(self, request: AdoptionRequest) -> AdoptionVerdict:
        self.asked.append(request)
        return self._verdict


@pytest.mark.requirement("A014", "A021")
@pytest.mark.parametrize("component", OPAQUE)
async def test_an_adoption_is_explicit_and_durable(path: Path, component: str) -> None:
    await completed(path)
    parts = Parts().changed(component)
    rig = build(path, parts)
    before = await rig.log()
    outcome = await run_to_completion(rig.app, following(profile_adoption=INTENT))
    assert outcome.status == SessionStatus.COMPLETED
    assert rig.effects == (2, 1)
    await rig.app.aclose()

    reopened = build(path, parts)
    added = (await reopened.log())[len(before) :]
    assert [type for type, _ in added[:2]] == [DECIDED, "session.resumed"]
    payload = added[0][1]
    profile = ExecutionProfile.from_json(payload["profile"])
    assert profile == reopened.app.services.registry.assemble("ann", "lab").profile
    assert payload["profile_fingerprint"] == profile.fingerprint
    assert payload["previous_profile_fingerprint"] == ExecutionProfile.from_json(before[0][1]["profile"]).fingerprint
    assert payload["outcome"] == "adopted"
    assert payload["changed_component_classes"] == [CLASS_OF[component]]
    assert {name: payload[name] for name in INTENT.model_dump()} == INTENT.model_dump()
    assert (await run_to_completion(reopened.app, following())).status == SessionStatus.COMPLETED
    assert (await reopened.types()).count(DECIDED) == 1
    await reopened.app.aclose()

    former = build(path)
    with pytest.raises(ExecutionProfileMismatchError):
        await run_to_completion(former.app, following())
    await former.app.aclose()


@pytest.mark.requirement("A014")
async def test_an_adoption_that_is_not_needed_changes_nothing(path: Path) -> None:
    await completed(path)
    rig = build(path)
    assert (await run_to_completion(rig.app, following(profile_adoption=INTENT))).status == SessionStatus.COMPLETED
    assert DECIDED not in await rig.types()
    await rig.app.aclose()


@pytest.mark.requirement("A014")
@pytest.mark.parametrize("ending", ["failed", "interrupted"])
async def test_every_ended_session_is_a_clean_boundary(path: Path, ending: str) -> None:
    def broken() -> None:
        raise LookupError

    rig = build(path, in_model=broken if ending == "failed" else None)
    assert (await run_to_completion(rig.app, start(max_steps=1))).status == ending
    await rig.app.aclose()
    rig = build(path, Parts().changed("tool"))
    assert (await run_to_completion(rig.app, following(profile_adoption=INTENT))).status == SessionStatus.COMPLETED
    assert (await rig.types()).count(DECIDED) == 1
    await rig.app.aclose()


@pytest.mark.requirement("A014")
async def test_an_adoption_outlives_a_refusal(path: Path) -> None:
    await completed(path)
    rig = build(path, Parts().changed("tool"))
    with pytest.raises(ExecutionProfileMismatchError):
        await run_to_completion(rig.app, following())
    assert (await run_to_completion(rig.app, following(profile_adoption=INTENT))).status == SessionStatus.COMPLETED
    await rig.app.aclose()
    former = build(path)
    with pytest.raises(ExecutionProfileMismatchError):
        await run_to_completion(former.app, following())
    assert (await former.types()).count(REJECTED) == 2, "the former profile is now the one that is refused"
    await former.app.aclose()


@pytest.mark.requirement("A015")
@pytest.mark.parametrize("where", ["model", "tool"])
@pytest.mark.parametrize("component", OPAQUE)
async def test_unfinished_work_is_no_boundary_for_an_adoption(path: Path, where: str, component: str) -> None:
    await cut_off(path, where)
    rig = build(path, Parts().changed(component))
    before = await rig.log()
    with pytest.raises(ExecutionProfileAdoptionRejected) as caught:
        await run_to_completion(rig.app, following(profile_adoption=INTENT))
    assert caught.value.changed_component_classes == (CLASS_OF[component],)
    with pytest.raises(SessionNeedsRecovery):
        await run_to_completion(rig.app, following())
    assert rig.effects == (0, 0)
    assert DECIDED not in await rig.types()
    assert (await rig.log())[: len(before)] == before
    await rig.app.aclose()
    right = build(path)
    await play(right.app.recover_incomplete_session(SESSION))
    assert (await right.app.get_session(SESSION)).status == SessionStatus.COMPLETED
    await right.app.aclose()


@pytest.mark.requirement("A015")
async def test_a_pending_approval_is_no_boundary_for_an_adoption(path: Path) -> None:
    await paused(path)
    parts = replace(Parts().changed("tool"), decision=ToolPolicyDecision.REQUIRE_APPROVAL)
    rig = build(path, parts)
    with pytest.raises(ExecutionProfileAdoptionRejected):
        await run_to_completion(rig.app, following(profile_adoption=INTENT))
    assert rig.effects == (0, 0)
    assert DECIDED not in await rig.types()
    assert await pending(rig)
    await rig.app.aclose()


@pytest.mark.requirement("A015")
async def test_an_unknown_outcome_is_no_boundary_for_an_adoption(path: Path) -> None:
    parts = replace(Parts(), effect=ToolEffect.EXTERNAL)
    await cut_off(path, "tool", parts)
    rig = build(path, parts)
    await play(rig.app.recover_incomplete_session(SESSION))
    assert (await rig.app.get_session(SESSION)).status == SessionStatus.INTERRUPTED
    await rig.app.aclose()
    changed = build(path, parts.changed("policy"))
    with pytest.raises(ExecutionProfileAdoptionRejected):
        await run_to_completion(changed.app, following(profile_adoption=INTENT))
    assert changed.effects == (0, 0)
    assert DECIDED not in await changed.types()
    await changed.app.aclose()


async def test_a_running_session_is_told_as_such_and_nothing_is_written(path: Path) -> None:
    other = build(path, Parts().changed("tool"))
    rig = build(path)
    seen = []
    async with aclosing(rig.app.run(start())) as events:
        async for event in events:
            if event.type == "tool.call.started":
                before = await other.log()
                for request in (following(), following(profile_adoption=INTENT)):
                    with pytest.raises(SessionRunning):
                        await run_to_completion(other.app, request)
                with pytest.raises(SessionRunning):
                    await play(other.app.recover_incomplete_session(SESSION))
                seen.append(await other.log() == before)
    assert seen == [True]
    assert other.effects == (0, 0)
    await rig.app.aclose()
    await other.app.aclose()


@pytest.mark.requirement("A016")
@pytest.mark.parametrize(
    "verdict,kind",
    [
        (AdoptionVerdict.REJECT, ExecutionProfileAdoptionRejected),
        (AdoptionVerdict.MIGRATION_REQUIRED, ExecutionProfileMigrationRequired),
    ],
)
async def test_a_rejected_adoption_and_a_needed_migration_are_two_things(
    path: Path, verdict: AdoptionVerdict, kind: type[ExecutionProfileError]
) -> None:
    await completed(path)
    policy = Verdict(verdict)
    rig = build(path, Parts().changed("tool"), policy=policy)
    with pytest.raises(ExecutionProfileError) as caught:
        await run_to_completion(rig.app, following(profile_adoption=INTENT))
    assert type(caught.value) is kind
    assert rig.effects == (0, 0)
    types = await rig.types()
    assert (types[-1], types.count(REJECTED), types.count(DECIDED)) == (REJECTED, 1, 0)
    assert [(asked.intent, asked.differences) for asked in policy.asked] == [(INTENT, (("tools", "other_or_unknown"),))]
    await rig.app.aclose()


@pytest.mark.requirement("A016")
def test_no_profile_error_is_a_kind_of_another() -> None:
    kinds = (ExecutionProfileMismatchError, ExecutionProfileAdoptionRejected, ExecutionProfileMigrationRequired)
    assert [kind.__mro__[1] for kind in kinds] == [ExecutionProfileError] * 3


@pytest.mark.requirement("A016")
@pytest.mark.parametrize("intent", [None, INTENT])
async def test_another_runtime_protocol_needs_a_migration(
    path: Path, intent: ExecutionProfileAdoptionIntent | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    await completed(path)
    monkeypatch.setattr("cayu.runtime.registry.RUNTIME_PROTOCOL", 2)
    rig = build(path)
    with pytest.raises(ExecutionProfileMigrationRequired) as caught:
        await run_to_completion(rig.app, following(profile_adoption=intent))
    assert caught.value.changed_component_classes == ("runtime_protocol",)
    assert rig.effects == (0, 0)
    await rig.app.aclose()


# What is kept


@pytest.mark.requirement("A019")
@pytest.mark.parametrize("boundary", list(BOUNDARIES))
async def test_no_file_and_no_error_names_a_member_or_a_version(path: Path, boundary: str) -> None:
    prepare, act, decision = BOUNDARIES[boundary]
    await prepare(path)
    rig = build(
        path, replace(Parts().changed("tool").changed("policy", "name").without("environment"), decision=decision)
    )
    with pytest.raises(ExecutionProfileMismatchError) as caught:
        await play(act(rig))
    told = repr((str(caught.value), vars(caught.value), caught.value.args))
    assert "canary" not in told
    assert TOOL not in told
    profiles = [payload for type, payload in await rig.log() if "profile" in type or "profile" in payload]
    assert len(profiles) == 2
    assert "canary" not in json.dumps([payload.get("profile", payload) for payload in profiles])
    for kept in path.parent.iterdir():
        data = kept.read_bytes()
        words = [word for component in OPAQUE for word in (*declared(component).model_dump().values(), "-changed")]
        assert [word for word in words if word.encode() in data] == []
    await rig.app.aclose()


@pytest.mark.requirement("A019")
async def test_a_profile_is_kept_as_digests_with_their_strength(path: Path) -> None:
    parts = replace(Parts().without("policy"), calls=False)
    rig = build(path, parts)
    await run_to_completion(rig.app, start())
    stored = (await rig.log())[0][1]["profile"]
    assert set(stored) == set(COMPONENT_CLASSES)
    for name, (digest, strength) in stored.items():
        assert len(digest) == 64
        assert set(digest) <= set("0123456789abcdef")
        assert strength == ("opaque" if name == "tool_policy" else "declared")
    adopting = build(path, Parts().changed("tool"))
    await run_to_completion(adopting.app, following(profile_adoption=INTENT))
    await rig.app.aclose()
    await adopting.app.aclose()
    first = build(path.with_name("quiet.db"), parts)
    await run_to_completion(first.app, start())
    await first.app.aclose()
    assert b"canary" not in path.with_name("quiet.db").read_bytes(), "a tool that was never called leaves no name"


# Other processes

CHILD = """
import asyncio, json, sys
from dataclasses import replace
from pathlib import Path
from cayu import Environment, EnvironmentSpec, KnowledgeAccessScope, run_to_completion
from cayu.errors import ExecutionProfileError
from cayu.storage import InMemoryKnowledgeStore
from runtime.behaviour import *
path = Path(sys.argv[1])
"""


def child(script: str, path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    known = {**os.environ, "PYTHONPATH": str(TESTS), **environment}
    command = [sys.executable, "-c", CHILD + script, str(path), *arguments]
    return subprocess.run(command, env=known, capture_output=True, text=True, timeout=60, check=False)


def output(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.requirement("A009")
def test_every_process_computes_the_same_profile(path: Path) -> None:
    script = """
rig = build(path)
labels = {name: "x" for name in "qwertyuiop"}
scope = KnowledgeAccessScope(allowed_namespaces=("b", "a"), required_labels=labels)
environment = EnvironmentSpec(name="shelf", execution_profile_identity=declared("environment"))
rig.app.register_environment(Environment(environment, knowledge_store=InMemoryKnowledgeStore().bind(scope)))
found = [rig.app.services.registry.assemble("ann", name).profile for name in ("lab", "shelf", None)]
print(json.dumps([[profile.fingerprint, profile.as_json()] for profile in found]))
"""
    seeds = ("0", "1", "4242")
    found = [
        output(child(script, path, PYTHONHASHSEED=seed, SECRET_TOKEN=f"secret-{seed}", HOME=f"/{seed}"))
        for seed in seeds
    ]
    assert found[0] == found[1] == found[2]
    here = build(path).app.services.registry.assemble("ann", "lab").profile
    assert found[0][0] == [here.fingerprint, here.as_json()]
    assert len({fingerprint for fingerprint, _ in found[0]}) == 3


RESUME = """
parts = Parts()
if sys.argv[2] != "same":
    parts = parts.without(sys.argv[2]) if sys.argv[3] == "opaque" else parts.changed(sys.argv[2])
async def main():
    rig = build(path, parts)
    request = start() if sys.argv[4] == "start" else following()
    try:
        told = (await run_to_completion(rig.app, request)).status
    except ExecutionProfileError as error:
        told = [type(error).__name__, error.differences]
    print(json.dumps([told, rig.effects]))
    await rig.app.aclose()
asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.requirement("A004", "A006", "A008")
def test_another_process_goes_on_with_the_same_declarations_only(path: Path) -> None:
    assert output(child(RESUME, path, "same", "", "start")) == ["completed", [2, 1]]
    assert output(child(RESUME, path, "same", "", "resume")) == ["completed", [2, 1]]
    refused = "ExecutionProfileMismatchError"
    changed = output(child(RESUME, path, "tool", "changed", "resume"))
    assert changed == [[refused, [["tools", "other_or_unknown"]]], [0, 0]]
    opaque = path.with_name("opaque.db")
    assert output(child(RESUME, opaque, "tool", "opaque", "start")) == ["completed", [2, 1]]
    again = output(child(RESUME, opaque, "tool", "opaque", "resume"))
    assert again == [[refused, [["tools", "opaque_identity"]]], [0, 0]]


KILLED = """
async def main():
    rig = build(path)
    await run_to_completion(rig.app, start())
asyncio.run(main())
"""


@pytest.mark.slow
@pytest.mark.requirement("A013", "A015")
@pytest.mark.parametrize("point", ["model.answered", "round.opened", "tool.dispatched", "tool.returned"])
async def test_a_killed_process_leaves_no_boundary_for_an_adoption(path: Path, point: str) -> None:
    done = child(KILLED, path, CAYU_CRASH_AT=point)
    assert done.returncode < 0, done.stderr
    rig = build(path, Parts().changed("tool"))
    before = await rig.log()
    with pytest.raises(ExecutionProfileAdoptionRejected):
        await run_to_completion(rig.app, following(profile_adoption=INTENT))
    with pytest.raises(ExecutionProfileMismatchError) as caught:
        await play(rig.app.recover_incomplete_session(SESSION))
    assert caught.value.boundary == "recovery"
    assert rig.effects == (0, 0)
    log = await rig.log()
    assert log[: len(before)] == before
    assert [type for type, _ in log[len(before) :]] == [REJECTED]
    await rig.app.aclose()
    right = build(path)
    await play(right.app.recover_incomplete_session(SESSION))
    assert (await right.app.get_session(SESSION)).status == SessionStatus.COMPLETED
    await right.app.aclose()
