"""What snapshots are made of: records that are named by their content, and name what they stand on."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar, Literal, Self

from pydantic import AwareDatetime, Field, ValidationInfo, field_validator, model_validator

from cayu.canonical import fingerprint, normalise
from cayu.evals.fields import Fingerprint, Id, SessionId
from cayu.knowledge.records import KnowledgeAccessScope
from cayu.messages import Frozen

NO_FINGERPRINT = "0" * 64
"""Stands for a fingerprint while a record is made."""
POSITION = "frontier"
"""The key of a material under which the place in a store's history stands."""
TIMES = frozenset({"created_at", "recorded_at"})
"""Fields that no fingerprint covers."""


class Addressed(Frozen):
    """A record named by its content: `fingerprint` covers every other field, times excepted."""

    kind_of_record: ClassVar[str]

    fingerprint: Fingerprint

    @classmethod
    def create(cls, **fields: Any) -> Self:
        """Return the record of these fields with its fingerprint. Raises `ValidationError`."""
        draft = cls.model_validate({**fields, "fingerprint": NO_FINGERPRINT}, context={"draft": cls})
        return draft.model_copy(update={"fingerprint": draft.digest()})

    def digest(self) -> str:
        """Return what the fingerprint has to be."""
        material = self.model_dump(mode="json", exclude={"fingerprint", *TIMES})
        return fingerprint(self.kind_of_record, normalise(material))

    @model_validator(mode="after")
    def _is_named_by_its_content(self, info: ValidationInfo) -> Self:
        is_draft = info.context is not None and info.context.get("draft") is type(self)
        if not is_draft and self.fingerprint != self.digest():
            raise ValueError("the fingerprint does not follow from the content: the record was changed")
        return self


def scope_fingerprint(scope: KnowledgeAccessScope) -> str:
    """Return the identity of what a principal may read, 64 hexadecimal digits."""
    return fingerprint("cayu.access-scope", scope.model_dump(mode="json"))


class AgentSnapshotTrialStateMode(StrEnum):
    """Whether trials of one candidate see each other's changes of memory."""

    RESET_EACH_TRIAL = "reset_each_trial"
    ACCUMULATE_WITHIN_CANDIDATE = "accumulate_within_candidate"


class AgentSnapshotTerminalDisposition(StrEnum):
    """How the session of a trial ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    OUTCOME_UNKNOWN = "outcome_unknown"


class AgentSnapshotComponent(Frozen):
    """One component as it was found."""

    kind: Id
    fingerprint: Fingerprint
    """Of `material`."""
    material: Any
    """What the component says about itself, as JSON; the content of memories is not in it."""

    _json = field_validator("material")(normalise)

    @classmethod
    def of(cls, kind: str, material: Any) -> AgentSnapshotComponent:
        """Return the component of this material."""
        return cls(kind=kind, fingerprint=component_fingerprint(kind, material), material=material)

    @model_validator(mode="after")
    def _is_named_by_its_content(self) -> Self:
        if self.fingerprint != component_fingerprint(self.kind, self.material):
            raise ValueError("the fingerprint of a component follows from its material")
        return self


def component_fingerprint(kind: str, material: Any) -> str:
    """Return the identity of a component's material; where it was found in a store is no part of what it is."""
    plain = normalise(material)
    identity = {name: value for name, value in plain.items() if name != POSITION} if isinstance(plain, dict) else plain
    return fingerprint(f"cayu.snapshot-component.{kind}", identity)


class AgentSnapshotCaptureRequest(Frozen):
    """Capture everything that the coordinator's providers stand for."""

    access: KnowledgeAccessScope
    """What the agent may read; trials get exactly that."""


class AgentSnapshot(Addressed):
    """An agent at one moment."""

    kind_of_record = "cayu.agent-snapshot"

    record_type: Literal["cayu.agent-snapshot"] = "cayu.agent-snapshot"
    authority_scope_fingerprint: Fingerprint
    components: tuple[AgentSnapshotComponent, ...]
    """In the order of their kinds."""
    created_at: AwareDatetime

    def digest(self) -> str:
        """Return what the fingerprint has to be: the components by their own."""
        parts = [[component.kind, component.fingerprint] for component in self.components]
        return fingerprint(self.kind_of_record, [self.authority_scope_fingerprint, parts])

    def component(self, kind: str) -> AgentSnapshotComponent:
        """Return the component of a kind. Raises `KeyError` when the snapshot has none."""
        for component in self.components:
            if component.kind == kind:
                return component
        raise KeyError(kind)


class AgentSnapshotMaterializationRequest(Frozen):
    """Open an isolated copy of a snapshot for trials of one candidate."""

    snapshot_fingerprint: Fingerprint
    candidate_id: Id
    trial_id: Id
    state_mode: AgentSnapshotTrialStateMode = AgentSnapshotTrialStateMode.RESET_EACH_TRIAL
    access: KnowledgeAccessScope
    """Has to be what the snapshot was captured under."""

    @property
    def state_scope_id(self) -> str:
        """The copy that is meant: one per trial, or one per candidate."""
        alone = self.state_mode is AgentSnapshotTrialStateMode.RESET_EACH_TRIAL
        material = [self.snapshot_fingerprint, self.candidate_id, self.trial_id if alone else None]
        return f"scope-{fingerprint('cayu.state-scope', material)[:40]}"

    @property
    def progress_id(self) -> str:
        """The one attempt at opening it, however often it is tried."""
        return f"materialization-{fingerprint('cayu.materialization-progress', self.state_scope_id)[:40]}"


class MaterializedComponent(Frozen):
    """One component of an isolated copy."""

    kind: Id
    baseline_fingerprint: Fingerprint
    """What it was in the snapshot."""
    materialization_ref: Fingerprint
    """The copy; the baseline itself for what cannot change."""
    overlay: bool = Field(strict=True)
    """True for a copy that can be written without the original being touched."""


class AgentSnapshotMaterialization(Addressed):
    """An isolated copy of a snapshot."""

    kind_of_record = "cayu.agent-snapshot-materialization"

    progress_id: Id
    snapshot_fingerprint: Fingerprint
    candidate_id: Id
    state_scope_id: Id
    state_mode: AgentSnapshotTrialStateMode
    authority_scope_fingerprint: Fingerprint
    created_at: AwareDatetime
    components: tuple[MaterializedComponent, ...]

    @property
    def memory_overlay_fingerprint(self) -> str:
        """The copy of the memory. Raises `KeyError` when the snapshot holds none."""
        for component in self.components:
            if component.overlay:
                return component.materialization_ref
        raise KeyError("no component of this materialization is an overlay")


class AgentSnapshotTrialBinding(Addressed):
    """One trial on one copy."""

    kind_of_record = "cayu.agent-snapshot-trial"

    snapshot_fingerprint: Fingerprint
    materialization_fingerprint: Fingerprint
    candidate_id: Id
    case_id: Id
    trial_id: Id
    evaluator_fingerprint: Fingerprint
    memory_overlay_fingerprint: Fingerprint
    created_at: AwareDatetime


class AgentSnapshotResultBinding(Addressed):
    """What came of one trial."""

    kind_of_record = "cayu.agent-snapshot-result"

    trial_fingerprint: Fingerprint
    session_id: SessionId
    terminal_disposition: AgentSnapshotTerminalDisposition
    runtime_evidence_fingerprint: Fingerprint
    eval_result_revision: Fingerprint | None = None
    memory_evidence_fingerprint: Fingerprint | None = None
    usage_fingerprint: Fingerprint | None = None
    cost_fingerprint: Fingerprint | None = None
    recorded_at: AwareDatetime
