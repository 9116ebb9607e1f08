"""What an intervention changes: revision-bound items and content-addressed fixtures, in one fingerprinted spec."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from cayu.evals.fields import Count, ExactFlag, Exactly, Fingerprint, Id
from cayu.interventions.base import ExecutionModel
from cayu.knowledge.records import KnowledgeEntry
from cayu.recall.policy import AutomaticRecallMode
from cayu.snapshots.records import Addressed, AgentSnapshotTrialStateMode

MOST_EFFECT_RECEIPTS = 128


class MemoryInterventionKind(StrEnum):
    """What is done to the memory of a trial."""

    AS_DECLARED = "as_declared"
    """Nothing: the baseline."""
    AUTOMATIC_RECALL_OFF = "automatic_recall_off"
    """The memory stays, and nothing of it is recalled by itself."""
    OMIT_ITEMS = "omit_items"
    REPLACE_ITEMS = "replace_items"
    NEGATIVE_CONTROL = "negative_control"
    """Items are put in that ought not to help."""


class MemoryNegativeControlKind(StrEnum):
    """What is wrong with the items of a negative control."""

    IRRELEVANT = "irrelevant"
    STALE = "stale"
    CONFLICTING = "conflicting"
    ADVERSARIAL = "adversarial"


class MemoryInterventionBounds(ExecutionModel):
    """How much one intervention may change."""

    max_changed_items: Annotated[Count, Field(ge=1, le=MOST_EFFECT_RECEIPTS)] = 16
    max_fixture_bytes: Annotated[Count, Field(ge=1, le=262_144)] = 65_536
    """UTF-8 bytes of titles and texts of all fixtures."""
    max_effect_receipts: Annotated[Count, Field(ge=1, le=MOST_EFFECT_RECEIPTS)] = MOST_EFFECT_RECEIPTS


class MemoryInterventionFixture(Addressed):
    """The content of an item that is put in."""

    kind_of_record = "cayu.memory-intervention-fixture"

    text: str = Field(min_length=1)
    title: str = ""
    namespace: Id = "default"
    labels: dict[str, str] = {}
    entry_kind: str = "fact"
    visibility: str = "public"

    @property
    def size(self) -> int:
        """UTF-8 bytes of title and text."""
        return len(self.title.encode()) + len(self.text.encode())

    def entry(self, entry_id: str, revision: int) -> KnowledgeEntry:
        """Return the item that the fixture becomes."""
        return KnowledgeEntry(
            id=entry_id,
            revision=revision,
            text=self.text,
            title=self.title,
            namespace=self.namespace,
            labels=self.labels,
            kind=self.entry_kind,
            visibility=self.visibility,
        )


class MemoryInterventionChange(ExecutionModel):
    """One item that is changed."""

    entry_id: Id
    revision: Count
    """The revision that is omitted or replaced; 0 for an item that is put in and must not be there."""
    fixture: MemoryInterventionFixture | None = None
    """What is put in; None omits."""


_SHAPES: dict[MemoryInterventionKind, tuple[bool, bool | None, bool | None]] = {
    MemoryInterventionKind.AS_DECLARED: (False, None, None),
    MemoryInterventionKind.AUTOMATIC_RECALL_OFF: (False, None, None),
    MemoryInterventionKind.OMIT_ITEMS: (True, True, False),
    MemoryInterventionKind.REPLACE_ITEMS: (True, True, True),
    MemoryInterventionKind.NEGATIVE_CONTROL: (True, False, True),
}
"""Kind -> (has changes, they name standing revisions, they have fixtures)."""


class MemoryInterventionSpec(Addressed):
    """One fixed intervention on one snapshot. It never reaches the production memory."""

    kind_of_record = "cayu.memory-intervention-spec"

    record_type: Literal["cayu.memory-intervention-spec"] = "cayu.memory-intervention-spec"
    schema_version: Annotated[Literal[1], Exactly] = 1
    spec_id: Id
    snapshot_fingerprint: Fingerprint
    memory_state_fingerprint: Fingerprint
    """Of the snapshot's knowledge component."""
    execution_profile_fingerprint: Fingerprint
    """Of the snapshot's execution profile."""
    starting_recall_policy_fingerprint: Fingerprint
    trial_recall_policy_fingerprint: Fingerprint
    starting_recall_mode: AutomaticRecallMode
    trial_recall_mode: AutomaticRecallMode
    trial_state_mode: AgentSnapshotTrialStateMode = AgentSnapshotTrialStateMode.RESET_EACH_TRIAL
    authority_scope_fingerprint: Fingerprint
    kind: MemoryInterventionKind
    bounds: MemoryInterventionBounds = MemoryInterventionBounds()
    changes: tuple[MemoryInterventionChange, ...] = ()
    negative_control_kind: MemoryNegativeControlKind | None = None
    reason: str = Field(default="", max_length=4000)
    evidence_only: Annotated[Literal[True], ExactFlag] = True
    production_mutation_allowed: Annotated[Literal[False], ExactFlag] = False

    @model_validator(mode="after")
    def _has_the_shape_of_its_kind(self) -> Self:
        changes, standing, fixtures = _SHAPES[self.kind]
        if bool(self.changes) != changes:
            raise ValueError(f"an intervention {self.kind} has {'at least one change' if changes else 'no changes'}")
        for change in self.changes:
            if (change.revision > 0) != standing or (change.fixture is not None) != fixtures:
                which = "a standing revision" if standing else "revision 0, that of an item which is not there"
                what = "a fixture" if fixtures else "no fixture"
                raise ValueError(f"{self.kind} names {which} and has {what}, unlike the change of {change.entry_id!r}")
        if (self.negative_control_kind is not None) != (self.kind is MemoryInterventionKind.NEGATIVE_CONTROL):
            raise ValueError("negative_control_kind is given for a negative control, and for nothing else")
        return self

    @model_validator(mode="after")
    def _keeps_within_its_bounds(self) -> Self:
        most = min(self.bounds.max_changed_items, self.bounds.max_effect_receipts)
        if len(self.changes) > most:
            raise ValueError(f"an intervention of these bounds changes at most {most} items")
        if len({change.entry_id for change in self.changes}) < len(self.changes):
            raise ValueError("an item is changed once")
        if sum(change.fixture.size for change in self.changes if change.fixture) > self.bounds.max_fixture_bytes:
            raise ValueError(f"the fixtures have more than {self.bounds.max_fixture_bytes} bytes")
        return self

    @model_validator(mode="after")
    def _changes_recall_only_to_switch_it_off(self) -> Self:
        same = self.trial_recall_policy_fingerprint == self.starting_recall_policy_fingerprint
        if self.kind is MemoryInterventionKind.AUTOMATIC_RECALL_OFF:
            if same or self.trial_recall_mode != "off" or self.starting_recall_mode == "off":
                raise ValueError(
                    "recall is switched off where it was on, under a policy of its own; leave it out otherwise"
                )
        elif not same or self.trial_recall_mode != self.starting_recall_mode:
            raise ValueError(f"an intervention {self.kind} leaves the recall policy as it is")
        return self
