"""The ways into a session that need no decision by a human: a new run, the next turn, and after a crash."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from cayu.crashpoints import reach
from cayu.errors import InvalidInput, SessionAwaitingHuman, SessionNotRunning, SessionRunning
from cayu.events import EventType as E
from cayu.runtime.admission import (
    Enter,
    check_profile,
    refuse_lost_step,
    refuse_reserved,
    refuse_running,
    refuse_unknown,
    repeated,
    stand,
)
from cayu.runtime.budgeting import check_budgets, release_open
from cayu.runtime.drive import Drive
from cayu.runtime.lineage import cascade_drafts, head_of
from cayu.runtime.ownership import RECOVERING
from cayu.runtime.planning import refused
from cayu.runtime.profiles import ExecutionProfilePolicy, admit_profile, refuse_unclean
from cayu.runtime.registry import Assembly
from cayu.runtime.rounds import is_closed, lost
from cayu.sessions.fold import ahead
from cayu.sessions.limits import ACCOUNTING
from cayu.sessions.projection import Draft
from cayu.sessions.recovery import UNFINISHED, CallRecovery, Registrations, SessionRecovery, plan_recovery
from cayu.sessions.requests import InterruptSessionRequest, ResumeRequest, RunRequest
from cayu.sessions.states import UNEXECUTED_WAITING
from cayu.sessions.streams import StreamRow, readable_owner
from cayu.sessions.view import CallView, RoundView, SessionView
from cayu.timing.phases import ROUND_COMMIT


def enter_run(request: RunRequest) -> Enter:
    """Enter a new session."""

    async def enter(drive: Drive) -> bool:
        assembly = drive.services.registry.assemble(request.agent_name, request.environment_name, choose_default=True)
        environment = assembly.environment
        session_id = request.session_id or f"session-{secrets.token_hex(8)}"
        row = StreamRow(
            id=session_id,
            instance_id=f"s{secrets.token_hex(8)}",
            agent_name=assembly.agent.name,
            provider_name=assembly.provider.name,
            model=assembly.agent.model,
            environment_name=environment.spec.name if environment else None,
            parent_session_id=request.parent_session_id,
            causal_budget_id=await _budget_of(drive, request) or session_id,
            title=request.title,
            labels=request.labels,
            metadata=request.metadata,
        )
        check_budgets(request.budget_limits, row.causal_budget_id)
        drive.attach(SessionView(row), assembly, create=row)
        started = {"profile": assembly.profile.as_json(), **_run_of(request)}
        await drive.log.commit([Draft(E.SESSION_STARTED, started)])
        reach("session.created")
        return True

    return enter


def enter_resume(request: ResumeRequest, policy: ExecutionProfilePolicy | None) -> Enter:
    """Enter the next turn of a session that has ended; what waited for too long is swept first."""

    async def enter(drive: Drive) -> bool:
        standing = await stand(drive.services, request.session_id)
        view = standing.view
        refuse_reserved(drive.services, standing)
        assembly = drive.services.registry.assemble(view.row.agent_name, view.row.environment_name)
        check_budgets(request.budget_limits, view.row.causal_budget_id)
        refuse_unclean(standing, assembly, request.profile_adoption)
        refuse_running(standing, assembly)
        refuse_unknown(standing)
        expired = [call for call in view.awaiting if is_expired(call, standing.now)]
        waiting = [call.action_id for call in view.awaiting if call not in expired]
        if waiting:
            if expired:
                drive.attach(view, assembly, evicting=standing.evicting, epoch=standing.state.epoch)
                await drive.log.commit([*map(expiry, expired)], release=True)
            raise SessionAwaitingHuman(session_id=view.row.id, actions=", ".join(map(repr, waiting)))
        adopted = await admit_profile(drive, standing, assembly, request.profile_adoption, policy)
        drive.attach(view, assembly, evicting=standing.evicting, epoch=standing.state.epoch)
        left = await release_open(drive.services.ledger, drive.log) if view.reservations else []
        resumed = _run_of(request) | _compacted(request, view, assembly)
        lead = [*adopted, *map(expiry, expired), Draft(E.SESSION_RESUMED, resumed), *left]
        if view.open_round is not None:
            return await continue_round(drive, lead)
        await drive.log.commit(lead)
        return True

    return repeated(enter)


def enter_recovery(session_id: str) -> Enter:
    """Enter a session whose process was lost, and do what `plan_recovery` decides."""

    async def enter(drive: Drive) -> bool:
        standing = await stand(drive.services, session_id)
        view = standing.view
        refuse_reserved(drive.services, standing)
        if view.status not in UNFINISHED:
            refuse_unknown(standing)
            raise SessionNotRunning(session_id=session_id, status=view.status)
        if standing.owned:
            raise SessionRunning(session_id=session_id, owner=readable_owner(standing.state.owner))
        assembly = drive.services.registry.assemble(view.row.agent_name, view.row.environment_name)
        refuse_lost_step(standing, assembly)
        await check_profile(drive, standing, assembly, "recovery")
        drive.attach(view, assembly, evicting=standing.evicting, epoch=standing.state.epoch, role=RECOVERING)
        return await recover(drive)

    return repeated(enter)


def enter_closing(request: InterruptSessionRequest, cascade_root: str) -> Enter:
    """Enter a session whose process was lost, only to end it: nothing runs, so no registration is needed."""

    async def enter(drive: Drive) -> bool:
        standing = await stand(drive.services, request.session_id)
        view = standing.view
        if view.status not in UNFINISHED:
            raise SessionNotRunning(session_id=view.row.id, status=view.status)
        if standing.owned:
            raise SessionRunning(session_id=view.row.id, owner=readable_owner(standing.state.owner))
        drive.attach(
            view,
            drive.services.registry.nothing(),
            evicting=standing.evicting,
            epoch=standing.state.epoch,
            role=RECOVERING,
        )
        return await end_lost(drive, [] if view.interrupt_requested else [interrupt_draft(request, cascade_root)])

    return repeated(enter)


async def claim_for_budget(drive: Drive) -> None:
    """Hold the session before anything of its budget is given back: a late owner may still be spending."""
    view = drive.log.view
    if (view.reservations or view.run.budget_limits) and not drive.log.claimed:
        await drive.log.commit([])


def time_round(drive: Drive, *, continued: bool = False) -> None:
    """Begin to time an attempt at the open round, if there is one: its continuation, or what a crash has left."""
    opened = drive.log.view.open_round
    if opened is None:
        return
    recovered = not continued and any(call.attempt for call in opened.calls)
    drive.timing.begin_round(opened.id, opened.step, recovered=recovered, continued=continued)
    known = drive.services.registry.tools_of(drive.log.view.row.agent_name)
    drive.timing.name_calls((call.id, call.name if call.name in known else None) for call in opened.calls)


async def end_lost(drive: Drive, lead: Sequence[Draft], settled: Sequence[Draft] = ()) -> bool:
    """End a session that was lost as interrupted; `lead` goes before, and holds the request if there is none yet."""
    time_round(drive)
    await claim_for_budget(drive)
    stopping = ahead(drive.log.view, [(draft.type, draft.payload) for draft in lead])
    ending = await _ending(drive, plan_recovery(stopping, Registrations()), settled)
    with drive.timing.within_round(ROUND_COMMIT):
        await drive.log.commit([*lead, *ending], release=True)
    return False


def interrupt_draft(request: InterruptSessionRequest, cascade_root: str) -> Draft:
    """Return the request to interrupt, as it is written; it names the session from which the whole tree stops."""
    asked = request.model_dump(mode="json", exclude={"session_id"}, exclude_none=True)
    return Draft(E.SESSION_INTERRUPT_REQUESTED, asked | {"cascade": {"root": cascade_root}})


def _gone(drive: Drive, plan: SessionRecovery, settled: Sequence[Draft] = ()) -> tuple[list[Draft], RoundView]:
    """Return what is written of the calls that were lost, and the open round as that leaves it."""
    view = drive.log.view
    gone = (*plan.of(CallRecovery.MARK_UNKNOWN), *plan.of(CallRecovery.FAIL))
    lead = [*(lost(call) for call in view.rounds[-1].calls if call.id in gone), *settled]
    drive.rounds.refuse(plan.of(CallRecovery.CLOSE_UNEXECUTED), "not_started")
    after = ahead(view, [(draft.type, draft.payload) for draft in lead]).open_round
    assert after is not None
    return lead, after


async def _ending(drive: Drive, plan: SessionRecovery, settled: Sequence[Draft] = ()) -> list[Draft]:
    """Return what ends a lost session as interrupted; an unknown outcome leaves its round open for an operator."""
    view = drive.log.view
    ended: dict[str, object] = {"reason": "interrupt_requested"}
    beside = [
        *await release_open(drive.services.ledger, drive.log),
        *await cascade_drafts(drive.services.store, view.row.id),
    ]
    if view.open_round is None:
        return [*beside, Draft(E.SESSION_INTERRUPTED, ended)]
    lead, after = _gone(drive, plan, settled)
    lead += await drive.rounds.settle(after, lead)
    lead += drive.rounds.closing(lead, after)
    if not is_closed(lead):
        ended |= {"needs": "manual_recovery", "tool_round_id": after.id}
    return [*lead, *beside, Draft(E.SESSION_INTERRUPTED, ended)]


async def recover(drive: Drive, attribution: Sequence[Draft] = (), settled: Sequence[Draft] = ()) -> bool:
    """Do what `plan_recovery` decides for a session that was lost.

    `attribution` says on whose behalf, and `settled` what was found out of calls whose outcome was not known.
    """
    view = drive.log.view
    if view.interrupt_requested:
        return await end_lost(drive, attribution, settled)
    if view.open_round is None:
        await claim_for_budget(drive)
        await drive.log.commit([*attribution, *await release_open(drive.services.ledger, drive.log)])
        return True
    time_round(drive)
    plan = plan_recovery(view, drive.assembly.registrations)
    lead, after = _gone(drive, plan, settled)
    again = [after.call(call_id) for call_id in plan.of(CallRecovery.REPLAY)]
    if await drive.rounds.begin([*attribution, *lead], again, opened=after, after=view, point="round.continued"):
        await drive.rounds.run()
    return not drive.log.released


async def continue_round(drive: Drive, lead: Sequence[Draft]) -> bool:
    """Write the decisions in `lead` with the starts of the calls that may now run, and run the round to its end."""
    time_round(drive, continued=True)
    now = await drive.services.store.now()
    after = ahead(drive.log.view, [(draft.type, draft.payload) for draft in lead], now)
    opened = after.open_round
    assert opened is not None
    calls = [call for call in opened.calls if call.state in UNEXECUTED_WAITING and not refused(call)]
    if await drive.rounds.begin(lead, calls, opened=opened, after=after, point="round.continued"):
        await drive.rounds.run()
    return not drive.log.released


def is_expired(call: CallView, now: int) -> bool:
    """True when a human had until before `now`, by the store's clock, to decide about the call."""
    return call.expires_at is not None and call.expires_at <= now


def expiry(call: CallView) -> Draft:
    """Return the event that a call waited for a human for too long."""
    code = "input_expired" if call.question is not None else "approval_expired"
    payload = {"tool_call_id": call.id, "tool_name": call.name, "action": call.action_id, "code": code}
    return Draft(E.TOOL_APPROVAL_EXPIRED, payload)


async def _budget_of(drive: Drive, request: RunRequest) -> str | None:
    """Return the causal budget that is asked for, or the parent's. Raises `SessionNotFound` for a parent unknown."""
    if request.parent_session_id is None:
        return request.causal_budget_id
    parent = await head_of(drive.services.store, request.parent_session_id)
    return request.causal_budget_id or parent.row.causal_budget_id


def _compacted(request: ResumeRequest, view: SessionView, assembly: Assembly) -> dict[str, object]:
    """Return the conversation that goes on in place of the one so far, when the request asks for one."""
    if not request.compact_context:
        return {}
    if assembly.context_policy is None:
        raise InvalidInput(f"Agent {assembly.agent.name!r} has no context policy; register one to compact by.")
    if view.open_round is not None:
        raise InvalidInput("A tool round is open; a conversation is compacted between rounds.")
    kept = assembly.context_policy.compact(tuple(view.transcript))
    return {"compacted": [message.model_dump(mode="json") for message in kept]}


def _run_of(request: RunRequest | ResumeRequest) -> dict[str, object]:
    limits = request.limits.model_dump(mode="json", exclude_defaults=True)
    budgets = [limit.model_dump(mode="json", exclude_defaults=True) for limit in request.budget_limits]
    return {
        "run_id": f"run-{secrets.token_hex(6)}",
        "accounting": ACCOUNTING,
        "max_steps": request.max_steps,
        **({"limits": limits} if limits else {}),
        **({"budget_limits": budgets} if budgets else {}),
        "messages": [message.model_dump(mode="json") for message in request.messages],
        "metadata": request.metadata,
        **({"task_id": request.task_id} if isinstance(request, RunRequest) and request.task_id else {}),
    }
