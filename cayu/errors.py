"""Every exception of Cayu, drawn as one tree; a class's docstring is its default message and says what to do next.

    CayuError
    ├── InvalidInput                              refused before anything was written
    │   ├── NotJson
    │   ├── NotRegistered
    │   ├── MissingBinding
    │   └── DatasetError
    ├── SessionError
    │   ├── SessionNotFound
    │   ├── SessionAlreadyExists
    │   ├── SessionRunning
    │   ├── SessionNotRunning
    │   ├── SessionAwaitingHuman
    │   ├── SessionNeedsRecovery
    │   ├── SessionRunFenced
    │   ├── SessionReserved
    │   ├── PendingActionNotFound
    │   ├── AlreadyDecided
    │   ├── IllegalTransition
    │   └── InvalidSessionLog
    ├── RecoveryError
    │   ├── StaleRecoveryPlanError
    │   ├── RecoveryExecutionConflict
    │   └── ContradictoryEvidence
    ├── BudgetExceeded
    ├── ExecutionProfileError
    │   ├── ExecutionProfileMismatchError
    │   ├── ExecutionProfileAdoptionRejected
    │   └── ExecutionProfileMigrationRequired
    ├── KnowledgeError
    │   ├── KnowledgeScopeError
    │   ├── KnowledgeEntryNotFound
    │   └── KnowledgeRevisionConflict
    ├── SnapshotError
    │   ├── SnapshotNotFound
    │   └── SnapshotConflict
    ├── MemoryInterventionExecutionConflict
    ├── StoreError
    │   ├── StreamConflict
    │   ├── StoreBusy                             transient
    │   ├── StoreOutcomeUnknown                   transient
    │   ├── StoreFull
    │   ├── StoreNotADatabase
    │   ├── StoredDocumentDamaged
    │   ├── StoreTooNew
    │   ├── StoreReadOnly
    │   └── StoreClosed
    ├── ProviderError
    └── NotebookError
        ├── OnLabLoop
        ├── LabClosed
        ├── NestedLoopsRefused
        ├── HeadlessDecisionMissing
        └── LabNotQuiet

Messages quote ids and never carry prompts, arguments, results or secrets; the ids also ride as attributes.
"""

from __future__ import annotations

from typing import Any


class CayuError(Exception):
    """Something went wrong in Cayu; the subclass says what."""

    def __init__(self, message: str | None = None, **attributes: Any) -> None:
        for name, value in attributes.items():
            setattr(self, name, value)
        self.attributes = attributes
        super().__init__(message or " ".join((type(self).__doc__ or "").split()).format_map(attributes))

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), str(self), self.attributes))


def _rebuild(kind: type[CayuError], message: str, attributes: dict[str, Any]) -> CayuError:
    return kind(message, **attributes)


class InvalidInput(CayuError, ValueError):
    """The request is not valid and nothing was written; correct it and call again."""


class NotJson(InvalidInput):
    """The value at {path} is {problem}, which is outside the JSON domain; convert it before handing it over."""

    path: str
    problem: str


class NotRegistered(InvalidInput):
    """No {kind} named {name!r} is registered with this application; register it first. Known: {known}."""

    kind: str
    name: str | None
    known: str


class MissingBinding(InvalidInput):
    """Tool {tool_name!r} needs a knowledge store, and the run has none; select an environment that binds one."""

    tool_name: str


class DatasetError(InvalidInput):
    """Data file {name!r} is missing or does not match its checksum; install the package again."""

    name: str


class SessionError(CayuError):
    """A session is not in the state that the call needs."""

    session_id: str


class SessionNotFound(SessionError):
    """There is no session {session_id!r} in this store; list the sessions to find its id."""


class SessionAlreadyExists(SessionError):
    """Session {session_id!r} exists already and nothing was written; resume it, or run with another id."""


class SessionRunning(SessionError):
    """Session {session_id!r} is at work under {owner}; wait for it, or interrupt it first. Nothing was written."""

    owner: str


class SessionNotRunning(SessionError):
    """Session {session_id!r} is {status}, so there is nothing to interrupt or recover; nothing was written."""

    status: str


class SessionAwaitingHuman(SessionError):
    """Session {session_id!r} waits for a decision on {actions}; decide with resolve_tool_approval (an approval)
    or resolve_user_input (a question), in a notebook with lab.approve, lab.deny or lab.answer, then resume."""

    actions: str


class SessionNeedsRecovery(SessionError):
    """Session {session_id!r} was cut off in the middle of its work ({reason}); {next_step}."""

    reason: str
    next_step: str


class SessionRunFenced(SessionError):
    """This run's claim on session {session_id!r} has run out or was taken over; it stops and has no further effect.
    Read the session to see who has it; if nobody, recover_incomplete_session goes on with it."""


class SessionReserved(SessionError):
    """Session {session_id!r} belongs to {reserved_for!r}, whose executor alone goes on with it, over a memory of its
    own. Execute the trial again instead; nothing was written. Reading and interrupting the session is free to all."""

    reserved_for: str


class PendingActionNotFound(SessionError):
    """Session {session_id!r} has no pending action {action_id!r}; call list_pending_actions to see what waits."""

    action_id: str


class AlreadyDecided(SessionError):
    """{action_id!r} of session {session_id!r} was decided already: {decision} by {decided_by} at {decided_at}."""

    action_id: str
    decision: str
    decided_by: str
    decided_at: str


class IllegalTransition(SessionError):
    """A {machine} in state {state!r} does not admit {event!r}; nothing was written. Read the state first."""

    machine: str
    state: str
    event: str


class InvalidSessionLog(SessionError):
    """Record {sequence} of session {session_id!r}, {event!r}, does not fit what stands before it, so nothing goes on
    from here and nothing was written. Restore the store from a copy, or leave the session as evidence."""

    sequence: int
    event: str


class RecoveryError(CayuError):
    """A recovery was refused."""


class StaleRecoveryPlanError(RecoveryError):
    """Session {session_id!r} is no longer as plan {plan_id!r} found it; make a new plan and review it.
    Nothing was written by this item."""

    session_id: str
    plan_id: str


class RecoveryExecutionConflict(RecoveryError):
    """Execution {execution_id!r} was begun with another plan or other decisions; nothing was written.
    Repeat it exactly, or take a new execution id."""

    execution_id: str


class ContradictoryEvidence(RecoveryError):
    """The evidence on call {tool_call_id!r} of session {session_id!r} contradicts what is known ({reason});
    nothing was written. Find out which is right before settling the call."""

    session_id: str
    tool_call_id: str
    reason: str


class BudgetExceeded(CayuError):
    """Budget {budget_id!r} has {left} {unit} left and {wanted} are asked for; nothing was reserved.
    Raise the cap, or wait until other sessions have given theirs back."""

    budget_id: str
    unit: str
    cap: str
    left: str
    wanted: str


class ExecutionProfileError(CayuError):
    """The application's behaviour differs from the one that the session was started under."""

    session_id: str
    expected_profile_fingerprint: str
    candidate_profile_fingerprint: str
    changed_component_classes: tuple[str, ...]
    differences: tuple[tuple[str, str], ...]
    boundary: str


class ExecutionProfileMismatchError(ExecutionProfileError):
    """Session {session_id!r} was started under another execution profile; changed: {changed_component_classes}.
    {advice} No provider was asked and no tool ran."""

    advice: str


class ExecutionProfileAdoptionRejected(ExecutionProfileError):
    """The change of profile of session {session_id!r} was not adopted ({reason}); nothing ran.
    Adoption needs a session without an open round, a pending action or an unfinished model step."""

    reason: str


class ExecutionProfileMigrationRequired(ExecutionProfileError):
    """Session {session_id!r} has to be migrated before it can go on ({reason}); open it with the application
    that wrote it, or start a new session. Adoption cannot bridge this."""

    reason: str


class KnowledgeError(CayuError):
    """A knowledge store refused the call."""


class KnowledgeScopeError(KnowledgeError, ValueError):
    """The access scope given is not the one this store is bound to; pass the bound scope or none,
    and bind an unbound store with bind(scope) first."""


class KnowledgeEntryNotFound(KnowledgeError):
    """There is no knowledge entry {entry_id!r} within the scope; check the id and the scope."""

    entry_id: str


class KnowledgeRevisionConflict(KnowledgeError):
    """Entry {entry_id!r} is at revision {actual}, not {expected}; read it again and retry."""

    entry_id: str
    expected: int
    actual: int


class SnapshotError(CayuError):
    """A snapshot cannot be used."""


class SnapshotNotFound(SnapshotError):
    """There is no {what} {fingerprint!r} in this store; capture a snapshot, or open the store that holds it."""

    what: str
    fingerprint: str


class SnapshotConflict(SnapshotError):
    """{what} does not agree with the snapshot ({reason}); nothing was written. Capture a new snapshot to go on."""

    what: str
    reason: str


class MemoryInterventionExecutionConflict(CayuError, RuntimeError):
    """Trial execution {execution_id!r} is not what this call says it is ({reason}); nothing was changed.
    Repeat the call exactly as it was first made, or give the trial a new id."""

    execution_id: str
    reason: str


class StoreError(CayuError):
    """The store could not do its work."""


class StreamConflict(StoreError):
    """Stream {stream!r} is at version {actual}, not {expected}; read it again before writing. Nothing was written."""

    stream: str
    expected: int | None
    actual: int


class StoreBusy(StoreError):
    """{path} is locked by another process for longer than the timeout; nothing was written. Close whatever holds it
    (a database browser, a stuck process) and try again."""

    path: str


class StoreOutcomeUnknown(StoreError):
    """The store did not acknowledge a write; read the stream back to learn whether it was committed."""


class StoreFull(StoreError):
    """The disk that holds {path} is full; nothing was written. Free some space and try again."""

    path: str


class StoreNotADatabase(StoreError):
    """{path} is not a Cayu store ({problem}); nothing was changed. Give another path or restore it from a copy."""

    path: str
    problem: str


class StoredDocumentDamaged(StoreError):
    """Document {id!r} of {collection!r} was edited, or is damaged, and nothing goes on from it; nothing was written.
    Restore the store from a copy."""

    collection: str
    id: str


class StoreTooNew(StoreError):
    """{path} was written by a newer release (schema {found}, this release knows {known}); upgrade cayu-lab."""

    path: str
    found: int
    known: int


class StoreReadOnly(StoreError):
    """{path} cannot be written; check the permissions of the file and its folder, or open it for reading only."""

    path: str


class StoreClosed(StoreError):
    """This store is closed; open a new one."""


class ProviderError(CayuError):
    """The model provider failed; the session is marked failed and can be resumed."""

    code: str = "error"


class NotebookError(CayuError):
    """The notebook side refused the call."""


class OnLabLoop(NotebookError):
    """A blocking call was made on the lab's own event loop, where it would wait for itself; await its
    asynchronous twin instead (lab.arun for lab.run)."""


class LabClosed(NotebookError):
    """This lab is closed; open it again with Lab.open."""


class NestedLoopsRefused(NotebookError):
    """Nested event loops lose queued cells on this kernel, so they stay off; write `await main()` in the cell,
    or `lab.call(main())`."""


class HeadlessDecisionMissing(NotebookError):
    """No decision is scripted for {action_id!r} and this notebook runs headless; script one with
    cayu.testing.decide([...]). Nothing is ever approved by default."""

    action_id: str


class LabNotQuiet(NotebookError):
    """The lab ended with {count} unread problem(s): {problems}. See lab.errors_df()."""

    count: int
    problems: str
