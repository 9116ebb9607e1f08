"""Whether a session may go on under a changed execution profile: only when asked to, and only at a clean boundary."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum

from cayu.errors import (
    ExecutionProfileAdoptionRejected,
    ExecutionProfileMigrationRequired,
    ExecutionProfileMismatchError,
)
from cayu.events import EventType as E
from cayu.identity import ExecutionProfileAdoptionIntent, ProfileComparison, compare_profiles
from cayu.messages import Frozen
from cayu.runtime.admission import Standing, profile_error, record_refusal
from cayu.runtime.drive import Drive
from cayu.runtime.registry import Assembly
from cayu.sessions.projection import Draft
from cayu.sessions.recovery import UNFINISHED
from cayu.sessions.view import SessionView

BOUNDARY = "resume"


class AdoptionVerdict(StrEnum):
    """What an application says of an adoption that was asked for."""

    ADOPT = "adopt"
    REJECT = "reject"
    MIGRATION_REQUIRED = "migration_required"


class AdoptionRequest(Frozen):
    """An adoption as the application's policy sees it."""

    session_id: str
    intent: ExecutionProfileAdoptionIntent
    changed_component_classes: tuple[str, ...]
    differences: tuple[tuple[str, str], ...]


class ExecutionProfilePolicy(ABC):
    """The application's say on adoptions; without one, an adoption that is asked for at a clean boundary is granted."""

    @abstractmethod
    async def decide(self, request: AdoptionRequest) -> AdoptionVerdict:
        """Grant the adoption, reject it, or say that the session has to be migrated first."""


async def admit_profile(
    drive: Drive,
    standing: Standing,
    assembly: Assembly,
    intent: ExecutionProfileAdoptionIntent | None,
    policy: ExecutionProfilePolicy | None,
) -> list[Draft]:
    """Return what is to be written before the session goes on: nothing, or the adoption that was asked for.

    Raises `ExecutionProfileMismatchError` when nobody asked, `ExecutionProfileAdoptionRejected` and
    `ExecutionProfileMigrationRequired`; each refusal is in the log by then.
    """
    comparison = compare_profiles(standing.view.profile, assembly.profile)
    if comparison.equal:
        return []
    verdict, reason = await _verdict(standing.view, comparison, intent, policy)
    if intent is not None and verdict is AdoptionVerdict.ADOPT:
        return [Draft(E.SESSION_PROFILE_DECIDED, _decided(comparison, intent))]
    await record_refusal(drive, standing, assembly, comparison, BOUNDARY)
    kind = {
        None: ExecutionProfileMismatchError,
        AdoptionVerdict.MIGRATION_REQUIRED: ExecutionProfileMigrationRequired,
    }.get(verdict, ExecutionProfileAdoptionRejected)
    raise profile_error(kind, standing.view, comparison, BOUNDARY, reason)


def refuse_unclean(standing: Standing, assembly: Assembly, intent: ExecutionProfileAdoptionIntent | None) -> None:
    """Raise when an adoption is asked for and needed while work of the session is unfinished."""
    view = standing.view
    if intent is None or standing.owned or not (view.status in UNFINISHED or view.open_round is not None):
        return
    comparison = compare_profiles(view.profile, assembly.profile)
    if not comparison.equal:
        reason = "a tool round is open" if view.open_round else "a model step may be in flight"
        raise profile_error(ExecutionProfileAdoptionRejected, view, comparison, BOUNDARY, reason)


async def _verdict(
    view: SessionView,
    comparison: ProfileComparison,
    intent: ExecutionProfileAdoptionIntent | None,
    policy: ExecutionProfilePolicy | None,
) -> tuple[AdoptionVerdict | None, str]:
    if "runtime_protocol" in comparison.changed_component_classes:
        return AdoptionVerdict.MIGRATION_REQUIRED, "the runtime protocol changed"
    if intent is None:
        return None, ""
    if policy is None:
        return AdoptionVerdict.ADOPT, ""
    request = AdoptionRequest(
        session_id=view.row.id,
        intent=intent,
        changed_component_classes=comparison.changed_component_classes,
        differences=comparison.differences,
    )
    return await policy.decide(request), "the application's policy decided so"


def _decided(comparison: ProfileComparison, intent: ExecutionProfileAdoptionIntent) -> dict[str, object]:
    return {
        "outcome": "adopted",
        "profile": comparison.candidate.as_json(),
        "previous_profile_fingerprint": comparison.expected.fingerprint,
        "profile_fingerprint": comparison.candidate.fingerprint,
        "changed_component_classes": list(comparison.changed_component_classes),
        "differences": [list(pair) for pair in comparison.differences],
        **intent.model_dump(mode="json"),
    }
