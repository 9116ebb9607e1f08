"""What has to hold before work enters a session: its state, its owner and its execution profile.

Entries load and check first and claim with their first commit. When another writer was faster they start over, so a
decision is made once and everyone else learns what it was.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from cayu.errors import (
    ExecutionProfileError,
    ExecutionProfileMismatchError,
    SessionNeedsRecovery,
    SessionNotFound,
    SessionReserved,
    SessionRunning,
    StreamConflict,
)
from cayu.events import EventType as E
from cayu.identity import DifferenceCategory, ProfileComparison, compare_profiles
from cayu.runtime.drive import Drive, Services
from cayu.runtime.ownership import is_gone
from cayu.runtime.registry import Assembly
from cayu.sessions.fold import fold
from cayu.sessions.projection import Draft
from cayu.sessions.records import RESERVED_FOR
from cayu.sessions.recovery import UNFINISHED, is_lost_step
from cayu.sessions.streams import StreamState, is_owned, readable_owner
from cayu.sessions.view import Rejected, SessionView

Enter = Callable[[Drive], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Standing:
    """A session as an entry finds it."""

    view: SessionView
    state: StreamState
    now: int
    """The store's clock in microseconds."""
    evicting: str | None
    """The owner of record, when it is provably gone."""

    @property
    def owned(self) -> bool:
        """True while a live owner works on the session."""
        return is_owned(self.state, self.now) and self.evicting is None


async def stand(services: Services, session_id: str) -> Standing:
    """Load and fold one session. Raises `SessionNotFound`."""
    loaded = await services.store.load(session_id)
    if loaded is None:
        raise SessionNotFound(session_id=session_id)
    state = loaded.head.state
    gone = state.owner if state.owner is not None and is_gone(state.owner) else None
    return Standing(fold(loaded.head.row, loaded.records), state, loaded.now, gone)


def repeated(enter: Enter) -> Enter:
    """Return an entry that starts over when another writer was faster."""

    async def entered(drive: Drive) -> bool:
        while True:
            try:
                return await enter(drive)
            except StreamConflict:
                continue

    return entered


def is_reserved(services: Services, view: SessionView) -> bool:
    """True for a session that another piece of work has to itself."""
    wanted = (view.row.metadata or {}).get(RESERVED_FOR)
    return wanted is not None and wanted != services.serves


def refuse_reserved(services: Services, standing: Standing) -> None:
    """Raise when going on with the session is another's alone."""
    view = standing.view
    if is_reserved(services, view):
        raise SessionReserved(session_id=view.row.id, reserved_for=str((view.row.metadata or {})[RESERVED_FOR]))


def refuse_running(standing: Standing, assembly: Assembly) -> None:
    """Raise when the session is at work, or was cut off at work."""
    view = standing.view
    if view.status not in UNFINISHED:
        return
    if standing.owned:
        raise SessionRunning(session_id=view.row.id, owner=readable_owner(standing.state.owner))
    refuse_lost_step(standing, assembly)
    reason = "a tool round is open" if view.open_round else "a model step may be in flight"
    step = "recover_incomplete_session, or lab.recover in a notebook, goes on with it; to look first, "
    raise SessionNeedsRecovery(session_id=view.row.id, reason=reason, next_step=step + planning(view.row.id))


def refuse_lost_step(standing: Standing, assembly: Assembly) -> None:
    """Raise when the provider was asked, and what came of it has to be decided."""
    view = standing.view
    if is_lost_step(view, assembly.registrations):
        reason = "the provider may have done a model step whose start is on record"
        raise SessionNeedsRecovery(session_id=view.row.id, reason=reason, next_step=planning(view.row.id))


def planning(session_id: str) -> str:
    """Return how an operator gets a plan for a session."""
    command = f"cayu recovery plan MODULE:FACTORY --session {shlex.quote(session_id)} --output plan.json"
    return f"plan its recovery with app.plan_recovery, lab.plan_recovery or `{command}`"


def refuse_unknown(standing: Standing) -> None:
    """Raise when a call's outcome has to be found out first."""
    opened = standing.view.open_round
    if opened is not None and opened.unknown:
        calls = ", ".join(repr(call.id) for call in opened.unknown)
        reason = f"whether {calls} acted is not known"
        step = f"find out, outside; {planning(standing.view.row.id)}, and execute the plan with what you found"
        raise SessionNeedsRecovery(session_id=standing.view.row.id, reason=reason, next_step=step)


async def check_profile(drive: Drive, standing: Standing, assembly: Assembly, boundary: str) -> None:
    """Compare profiles; on a difference record the refusal, once, and raise `ExecutionProfileMismatchError`."""
    comparison = compare_profiles(standing.view.profile, assembly.profile)
    if not comparison.equal:
        await record_refusal(drive, standing, assembly, comparison, boundary)
        raise profile_error(ExecutionProfileMismatchError, standing.view, comparison, boundary)


async def record_refusal(
    drive: Drive, standing: Standing, assembly: Assembly, comparison: ProfileComparison, boundary: str
) -> None:
    """Write that a profile was refused, unless the log's last refusal says the same."""
    candidate = comparison.candidate.fingerprint
    rejected = standing.view.rejected
    if rejected is not None and (rejected.candidate == candidate or _same_opaque(rejected, comparison)):
        return
    drive.attach(standing.view, assembly, evicting=standing.evicting, epoch=standing.state.epoch)
    payload = {
        "boundary": boundary,
        "expected_profile_fingerprint": comparison.expected.fingerprint,
        "candidate_profile_fingerprint": candidate,
        "changed_component_classes": list(comparison.changed_component_classes),
        "differences": [list(pair) for pair in comparison.differences],
    }
    await drive.log.commit([Draft(E.SESSION_PROFILE_REJECTED, payload)], release=True)


def _same_opaque(rejected: Rejected, comparison: ProfileComparison) -> bool:
    """True for a refusal that differs from the last one by an identity that differs in every process anyway."""
    return _has_opaque(comparison) and rejected.differences == comparison.differences


def profile_error(
    kind: type[ExecutionProfileError], view: SessionView, comparison: ProfileComparison, boundary: str, reason: str = ""
) -> ExecutionProfileError:
    """Return the error that tells of a profile, with its classes and never a member."""
    return kind(
        session_id=view.row.id,
        expected_profile_fingerprint=comparison.expected.fingerprint,
        candidate_profile_fingerprint=comparison.candidate.fingerprint,
        changed_component_classes=comparison.changed_component_classes,
        differences=comparison.differences,
        boundary=boundary,
        reason=reason,
        advice=_advice(comparison, clean=view.open_round is None and view.status not in UNFINISHED),
    )


def _advice(comparison: ProfileComparison, *, clean: bool) -> str:
    if _has_opaque(comparison):
        cause = (
            "A component there declares no execution_profile_identity, so that it is known within one application "
            "object only; declare one from the first run on."
        )
    else:
        cause = "Restore the registrations it began with."
    if not clean:
        return f"{cause} Until then the session stays as it is: its work is not finished, so no change can be adopted."
    return f"{cause} Or begin a new session, or adopt the change with ResumeRequest(profile_adoption=...)."


def _has_opaque(comparison: ProfileComparison) -> bool:
    return any(category == DifferenceCategory.OPAQUE_IDENTITY for _, category in comparison.differences)
