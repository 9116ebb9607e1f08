"""Tests the ready-made policies: what they decide, and that their declaration says all that they do."""

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import ValidationError

from cayu import AgentSpec, SessionStatus, ToolEffect, ToolPolicy
from cayu.sessions import Session
from cayu.tools import (
    AllowAllToolPolicy,
    AlwaysRequireApprovalToolPolicy,
    ByEffectToolPolicy,
    ByNameToolPolicy,
    ToolPolicyDecision,
    ToolPolicyRequest,
    ToolPolicyResult,
)

ALLOW, DENY, ASK = ToolPolicyDecision.ALLOW, ToolPolicyDecision.DENY, ToolPolicyDecision.REQUIRE_APPROVAL
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def request(name: str = "look", effect: ToolEffect = ToolEffect.NONE) -> ToolPolicyRequest:
    session = Session(
        id="s",
        instance_id="i",
        agent_name="ann",
        provider_name="p",
        model="m",
        environment_name=None,
        parent_session_id=None,
        causal_budget_id=None,
        status=SessionStatus.RUNNING,
        run_epoch=1,
        created_at=NOW,
        updated_at=NOW,
        last_activity_at=NOW,
    )
    return ToolPolicyRequest(
        session=session,
        agent=AgentSpec(name="ann", model="m"),
        tool_name=name,
        tool_call_id="c",
        tool_round_id="r",
        tool_effect=effect,
        arguments={},
    )


async def decision(policy: ToolPolicy, **more: Any) -> ToolPolicyDecision:
    return (await policy.authorize(request(**more))).decision


@pytest.mark.parametrize("effect", list(ToolEffect))
async def test_simple_policies_say_the_same_of_every_call(effect: ToolEffect) -> None:
    assert await decision(AllowAllToolPolicy(), effect=effect) is ALLOW
    assert await decision(AlwaysRequireApprovalToolPolicy(), effect=effect) is ASK


async def test_an_approval_may_have_an_end() -> None:
    assert (await AlwaysRequireApprovalToolPolicy().authorize(request())).approval_expires_in_seconds is None
    timed = await AlwaysRequireApprovalToolPolicy(expires_in_seconds=60).authorize(request())
    assert timed.approval_expires_in_seconds == 60


@pytest.mark.parametrize("seconds", [0, -1])
def test_an_end_lies_ahead(seconds: float) -> None:
    with pytest.raises(ValidationError):
        ToolPolicyResult(decision=ASK, approval_expires_in_seconds=seconds)


async def test_by_effect_reads_run_and_the_rest_asks() -> None:
    policy = ByEffectToolPolicy()
    found = {effect: await decision(policy, effect=effect) for effect in ToolEffect}
    assert found == {ToolEffect.NONE: ALLOW, ToolEffect.IDEMPOTENT: ASK, ToolEffect.EXTERNAL: ASK}


async def test_by_effect_takes_each_decision() -> None:
    policy = ByEffectToolPolicy(none=ASK, idempotent=ALLOW, external=DENY)
    found = [await decision(policy, effect=effect) for effect in ToolEffect]
    assert found == [ASK, ALLOW, DENY]
    assert "external" in ((await policy.authorize(request(effect=ToolEffect.EXTERNAL))).reason or "")


async def test_by_name_decides_by_name_with_one_decision_for_the_others() -> None:
    policy = ByNameToolPolicy({"pay": ASK, "wipe": DENY})
    assert [await decision(policy, name=name) for name in ("pay", "wipe", "look")] == [ASK, DENY, ALLOW]
    strict = ByNameToolPolicy({"look": ALLOW}, default=DENY)
    assert [await decision(strict, name=name) for name in ("look", "pay", "")] == [ALLOW, DENY, DENY]


def test_an_unknown_decision_is_refused() -> None:
    with pytest.raises(ValueError, match="perhaps"):
        ByNameToolPolicy({"pay": "perhaps"})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="perhaps"):
        ByEffectToolPolicy(none="perhaps")  # type: ignore[arg-type]


def settings() -> list[ToolPolicy]:
    """Policies of which no two decide alike."""
    return [
        AllowAllToolPolicy(),
        AlwaysRequireApprovalToolPolicy(),
        AlwaysRequireApprovalToolPolicy(expires_in_seconds=60),
        AlwaysRequireApprovalToolPolicy(expires_in_seconds=61),
        ByEffectToolPolicy(),
        ByEffectToolPolicy(none=ASK),
        ByEffectToolPolicy(idempotent=ALLOW),
        ByEffectToolPolicy(external=DENY),
        ByNameToolPolicy({}),
        ByNameToolPolicy({}, default=DENY),
        ByNameToolPolicy({"pay": ASK}),
        ByNameToolPolicy({"pay": DENY}),
        ByNameToolPolicy({"pay": ASK, "look": ASK}),
    ]


@pytest.mark.requirement("A006", "A007")
def test_a_declaration_changes_with_every_setting_and_with_nothing_else() -> None:
    first = [policy.execution_profile_identity for policy in settings()]
    assert None not in first
    assert first == [policy.execution_profile_identity for policy in settings()]
    assert len(set(map(str, first))) == len(first)


def test_the_order_of_names_does_not_matter() -> None:
    one, other = ByNameToolPolicy({"a": ASK, "b": DENY}), ByNameToolPolicy({"b": DENY, "a": ASK})
    assert one.execution_profile_identity == other.execution_profile_identity


def test_equal_numbers_make_equal_declarations() -> None:
    one, other = (AlwaysRequireApprovalToolPolicy(expires_in_seconds=seconds) for seconds in (60, 60.0))
    assert one.execution_profile_identity == other.execution_profile_identity


def test_a_policy_of_one_s_own_is_opaque_until_it_declares_itself() -> None:
    class Mine(ToolPolicy):
        async def authorize(self, request: ToolPolicyRequest) -> ToolPolicyResult:
            return ToolPolicyResult(decision=ALLOW)

    assert Mine().execution_profile_identity is None
