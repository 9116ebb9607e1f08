"""The arms of an experiment: what is done to the memory of each case, as functions of case and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from cayu.errors import InvalidInput
from cayu.evals.cases import EvalCase
from cayu.interventions.specs import (
    MemoryInterventionChange,
    MemoryInterventionFixture,
    MemoryInterventionKind,
    MemoryNegativeControlKind,
)
from cayu.knowledge.records import KnowledgeEntry

Memories = Mapping[str, KnowledgeEntry]
"""The captured entries, by id."""
Changes = Callable[[EvalCase, Memories], Sequence[MemoryInterventionChange]]


class Control(Protocol):
    """A prepared item, such as those of `cayu.storage.handbook_controls()`."""

    @property
    def question_id(self) -> str:
        """The case that it was prepared for."""
        ...

    @property
    def kind(self) -> str:
        """A `MemoryNegativeControlKind`."""
        ...

    @property
    def title(self) -> str:
        """As an entry's."""
        ...

    @property
    def text(self) -> str:
        """As an entry's."""
        ...

    @property
    def namespace(self) -> str:
        """As an entry's."""
        ...

    @property
    def labels(self) -> dict[str, str]:
        """As an entry's."""
        ...


def _nothing(case: EvalCase, memories: Memories) -> Sequence[MemoryInterventionChange]:
    return ()


@dataclass(frozen=True, slots=True)
class Intervention:
    """One arm. A case to which it does nothing has no trial in it."""

    name: str
    """Names the arm, and is part of its trials' ids."""
    kind: MemoryInterventionKind
    changes: Changes = _nothing
    """Gives the same changes whenever it is asked."""
    control: MemoryNegativeControlKind | None = None

    def __post_init__(self) -> None:
        """Raise `InvalidInput` for a name or a kind that is none."""
        check_name("An intervention", self.name)
        kinds = tuple(map(str, MemoryInterventionKind))
        if self.kind not in kinds:
            raise InvalidInput(f"{self.kind!r} is no kind of intervention; kinds: {', '.join(kinds)}.")
        object.__setattr__(self, "kind", MemoryInterventionKind(self.kind))

    def changes_for(self, case: EvalCase, memories: Memories) -> Sequence[MemoryInterventionChange]:
        """Return what is done to the memory of a case. Raises `InvalidInput` when the arm's function fails."""
        try:
            return tuple(self.changes(case, memories))
        except InvalidInput:
            raise
        except Exception as error:
            words = f"The changes of intervention {self.name!r} fail for case {case.case_id!r}"
            raise InvalidInput(f"{words}: {type(error).__name__}.") from error

    def applies_to(self, case: EvalCase, memories: Memories) -> bool:
        """True unless the arm needs changes and has none for the case."""
        still = (MemoryInterventionKind.AS_DECLARED, MemoryInterventionKind.AUTOMATIC_RECALL_OFF)
        return self.kind in still or bool(self.changes_for(case, memories))


def baseline() -> Intervention:
    """Leave the memory as it was captured."""
    return Intervention("baseline", MemoryInterventionKind.AS_DECLARED)


def recall_off() -> Intervention:
    """Leave the memory, and recall nothing of it."""
    return Intervention("recall_off", MemoryInterventionKind.AUTOMATIC_RECALL_OFF)


def omit_expected(name: str = "omit_expected") -> Intervention:
    """Take out the entries that hold each case's answer."""

    def changes(case: EvalCase, memories: Memories) -> Sequence[MemoryInterventionChange]:
        return [_standing(entry_id, memories) for entry_id in case.expected_entries]

    return Intervention(name, MemoryInterventionKind.OMIT_ITEMS, changes)


def omit(*entry_ids: str, name: str | None = None) -> Intervention:
    """Take the same entries out in every case: what were they worth?"""
    if not entry_ids:
        raise InvalidInput("Name at least one entry to omit.")

    def changes(case: EvalCase, memories: Memories) -> Sequence[MemoryInterventionChange]:
        return [_standing(entry_id, memories) for entry_id in entry_ids]

    return Intervention(name or f"omit {', '.join(entry_ids)}", MemoryInterventionKind.OMIT_ITEMS, changes)


def replace_expected(controls: Iterable[Control], name: str = "stale") -> Intervention:
    """Put each case's `stale` control in the place of the entries that hold its answer."""
    known = _by_case(controls, MemoryNegativeControlKind.STALE)

    def changes(case: EvalCase, memories: Memories) -> Sequence[MemoryInterventionChange]:
        return [
            _standing(entry_id, memories).model_copy(update={"fixture": _fixture(control)})
            for control in known.get(case.case_id, ())[:1]
            for entry_id in case.expected_entries
        ]

    return Intervention(name, MemoryInterventionKind.REPLACE_ITEMS, changes)


def inject(kind: MemoryNegativeControlKind | str, controls: Iterable[Control], name: str | None = None) -> Intervention:
    """Put each case's controls of a kind beside what is there."""
    kinds = tuple(map(str, MemoryNegativeControlKind))
    if kind not in kinds:
        raise InvalidInput(f"{kind!r} is no kind of control; kinds: {', '.join(kinds)}.")
    wanted = MemoryNegativeControlKind(kind)
    known = _by_case(controls, wanted)

    def changes(case: EvalCase, memories: Memories) -> Sequence[MemoryInterventionChange]:
        return [
            MemoryInterventionChange(entry_id=f"control-{case.case_id}-{n}", revision=0, fixture=_fixture(control))
            for n, control in enumerate(known.get(case.case_id, ()), 1)
        ]

    return Intervention(name or str(wanted), MemoryInterventionKind.NEGATIVE_CONTROL, changes, wanted)


def _standing(entry_id: str, memories: Memories) -> MemoryInterventionChange:
    entry = memories.get(entry_id)
    if entry is None:
        raise InvalidInput(f"There is no entry {entry_id!r} in the captured memory, so nothing can be done to it.")
    return MemoryInterventionChange(entry_id=entry_id, revision=entry.revision)


def _by_case(controls: Iterable[Control], kind: MemoryNegativeControlKind) -> dict[str, list[Control]]:
    found: dict[str, list[Control]] = {}
    for control in controls:
        if control.kind == kind:
            found.setdefault(control.question_id, []).append(control)
    if not found:
        raise InvalidInput(f"None of the controls is {kind}.")
    return found


def _fixture(control: Control) -> MemoryInterventionFixture:
    return MemoryInterventionFixture.create(
        text=control.text, title=control.title, namespace=control.namespace, labels=control.labels
    )


def check_name(what: str, name: object) -> None:
    """Raise `InvalidInput` unless a name can stand in the ids of trials."""
    if not isinstance(name, str) or not name.strip() or name != name.strip() or not name.isprintable():
        raise InvalidInput(f"{what} has a printable name without space at its ends, not {name!r:.80}.")
