"""Which memories stood before a model: counted exactly, cut by each bound on its own, and named by keyed aliases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from cayu.canonical import canonical_bytes, dumps
from cayu.events import EventType as E
from cayu.recall import (
    MemoryAttribution,
    MemoryAttributionBounds,
    MemoryExposure,
    MemoryReceipt,
    attribute,
    memory_alias,
)
from cayu.recall.attribution import items_seen
from cayu.sessions.streams import StoredRecord

KEY = b"k" * 32
BOUNDS = MemoryAttributionBounds()
Told = tuple[str, dict[str, Any]]


def records(*told: Told) -> list[StoredRecord]:
    """A log with these events, as (type, payload)."""
    return [StoredRecord(number, type, number, dumps(payload)) for number, (type, payload) in enumerate(told, 1)]


def item(name: str, disposition: str = "injected", source: str = "knowledge", revision: int = 1) -> dict[str, Any]:
    return {"source": source, "id": name, "revision": revision, "disposition": disposition}


def recalled(number: int, *items: dict[str, Any], step: int = 1) -> Told:
    return E.RECALL_COMPLETED, {"recall": number, "step": step, "mode": "offer", "items": list(items)}


def exposed(step: int, *items: dict[str, Any], recalls: Sequence[int] = (1,)) -> Told:
    return E.EXPOSURE_RECORDED, {"step": step, "recalls": list(recalls), "items": list(items)}


def read(*pairs: Any, type: Any = "cayu.knowledge") -> Told:
    return E.TOOL_STAGED, {"tool_call_id": "c", "artifacts": [{"type": type, "items": list(pairs)}]}


def started(step: int) -> Told:
    return E.MODEL_STARTED, {"step": step, "model": "m"}


def alias(name: str, source: str = "knowledge", revision: int = 1) -> str:
    return memory_alias(KEY, source, name, revision)


def project(*told: Told, **bounds: int) -> MemoryAttribution:
    return attribute(records(*told), KEY, MemoryAttributionBounds(**bounds))


ONE = (recalled(1, item("a"), item("b", "offered"), item("c", "left_out")), exposed(1, item("a"), item("b", "offered")))
TWO = (*ONE, started(1), recalled(2, item("d"), step=2), exposed(2, item("a"), item("d"), recalls=(1, 2)), started(2))


def test_a_log_is_told_in_its_order() -> None:
    found = project(*TWO)
    assert (found.status, found.truncated, found.reason) == ("complete", False, None)
    assert found.receipts == (
        MemoryReceipt(recall=1, step=1, mode="offer", considered=3, injected=(alias("a"),), offered=(alias("b"),)),
        MemoryReceipt(recall=2, step=2, mode="offer", considered=1, injected=(alias("d"),)),
    )
    assert found.exposures == (
        MemoryExposure(step=1, origin="recall", injected=(alias("a"),), offered=(alias("b"),)),
        MemoryExposure(step=2, origin="recall", injected=(alias("a"), alias("d"))),
    )
    assert (found.observed_receipts, found.observed_exposures, found.observed_items) == (2, 2, 7)


def test_what_a_tool_has_read_is_exposed_by_the_first_request_after_it() -> None:
    found = project(started(1), read(["a", 2], ["b", 1]), read(["a", 2]), started(2), started(3))
    assert found.exposures == (MemoryExposure(step=2, origin="tool", injected=(alias("a", revision=2), alias("b"))),)
    assert found.receipts == ()


def test_what_was_read_and_never_asked_with_is_no_exposure() -> None:
    assert project(started(1), read(["a", 1])).is_empty


def test_a_log_without_memory_is_empty_and_one_that_cannot_be_read_is_not() -> None:
    assert project(started(1)).is_empty
    assert project(recalled(1, item("a", "left_out"))).is_empty
    assert not project(*ONE).is_empty
    unavailable = MemoryAttribution.unavailable("evidence_read_failed")
    assert (unavailable.status, unavailable.reason, unavailable.is_empty) == (
        "unavailable",
        "evidence_read_failed",
        False,
    )
    assert not project(*ONE, max_exposures=0).is_empty


# Aliases.


def test_an_alias_tells_nothing_without_its_key_and_tells_items_apart() -> None:
    seen = {
        memory_alias(key, source, name, revision)
        for key in (b"k", b"l")
        for source in ("knowledge", "transcript")
        for name in ("a", "b")
        for revision in (1, 2)
    }
    assert len(seen) == 16
    assert {len(each) for each in seen} == {32}
    assert alias("a") == alias("a")


def test_no_name_and_no_text_is_in_a_projection() -> None:
    secret = item("secret-name") | {"text": "secret text", "title": "secret title"}
    found = project(recalled(1, secret), exposed(1, secret), read(["secret-tool", 1]), started(1))
    assert "secret" not in found.model_dump_json()
    assert found.observed_items == 3


# Bounds.


@pytest.mark.parametrize(
    ("bounds", "reason", "observed", "omitted"),
    [
        ({"max_receipts": 1}, "source_limit", (1, 2, 6), (1, 0, 1)),
        ({"max_receipts": 0}, "source_limit", (0, 2, 4), (2, 0, 3)),
        ({"max_exposures": 1}, "source_limit", (2, 1, 5), (0, 1, 2)),
        ({"max_items": 4}, "source_limit", (1, 1, 4), (1, 1, 3)),
        ({"max_items": 0}, "source_limit", (0, 0, 0), (2, 2, 7)),
        ({"max_projection_bytes": 1}, "projection_bytes_limit", (0, 0, 0), (2, 2, 7)),
        ({"max_source_bytes": 1}, "source_bytes_limit", (0, 0, 0), (2, 2, 7)),
        ({}, None, (2, 2, 7), (0, 0, 0)),
        ({"max_receipts": 2, "max_exposures": 2, "max_items": 7}, None, (2, 2, 7), (0, 0, 0)),
    ],
)
def test_each_bound_cuts_on_its_own_and_everything_is_counted(
    bounds: dict[str, int], reason: str | None, observed: tuple[int, ...], omitted: tuple[int, ...]
) -> None:
    found = project(*TWO, **bounds)
    assert (found.observed_receipts, found.observed_exposures, found.observed_items) == observed
    assert (
        found.omitted_receipts_at_least,
        found.omitted_exposures_at_least,
        found.omitted_items_at_least,
    ) == omitted
    assert (len(found.receipts), len(found.exposures)) == observed[:2]
    assert (found.reason, found.truncated) == (reason, reason is not None)
    assert found.status == ("complete" if reason is None else "truncated")


def test_source_bytes_count_the_whole_log_up_to_each_event() -> None:
    log = records(*TWO)
    until = sum(len(record.body) for record in log[:2])
    exactly = attribute(log, KEY, MemoryAttributionBounds(max_source_bytes=until))
    assert (exactly.observed_receipts, exactly.observed_exposures, exactly.reason) == (1, 1, "source_bytes_limit")
    one_less = attribute(log, KEY, MemoryAttributionBounds(max_source_bytes=until - 1))
    assert (one_less.observed_receipts, one_less.observed_exposures) == (1, 0)


def test_the_first_reason_stands() -> None:
    assert project(*TWO, max_receipts=0, max_projection_bytes=1).reason == "source_limit"


def test_bounds_are_whole_numbers() -> None:
    for wrong in ({"max_receipts": -1}, {"max_items": True}, {"max_source_bytes": 0}, {"max_exposures": 1.0}):
        with pytest.raises(ValidationError):
            MemoryAttributionBounds.model_validate(wrong)
    assert MemoryAttributionBounds().model_dump() == {
        "max_receipts": 100,
        "max_exposures": 100,
        "max_items": 1000,
        "max_source_bytes": 16777216,
        "max_projection_bytes": 4194304,
    }


ITEMS = st.builds(item, st.sampled_from("abcd"), st.sampled_from(["injected", "offered", "left_out"]))
LISTS = st.lists(ITEMS, max_size=4)
EVENTS = st.one_of(
    st.builds(lambda items: recalled(1, *items), LISTS),
    st.builds(lambda step, items: exposed(step, *items), st.integers(1, 9), LISTS),
    st.builds(lambda names: read(*([name, 1] for name in names)), st.lists(st.sampled_from("abcd"), max_size=4)),
    st.builds(started, st.integers(1, 9)),
)
ANY_BOUNDS = st.fixed_dictionaries(
    {
        "max_receipts": st.integers(0, 4),
        "max_exposures": st.integers(0, 4),
        "max_items": st.integers(0, 12),
        "max_source_bytes": st.integers(1, 1500),
        "max_projection_bytes": st.integers(1, 1500),
    }
)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.lists(EVENTS, max_size=12), ANY_BOUNDS)
def test_no_bound_is_passed_and_nothing_goes_uncounted(told: list[Told], bounds: dict[str, int]) -> None:
    whole, cut = project(*told), project(*told, **bounds)
    kept = [*cut.receipts, *cut.exposures]
    assert len(cut.receipts) == cut.observed_receipts <= bounds["max_receipts"]
    assert len(cut.exposures) == cut.observed_exposures <= bounds["max_exposures"]
    assert sum(len(each.injected) + len(each.offered) for each in kept) == cut.observed_items <= bounds["max_items"]
    size = sum(len(canonical_bytes(each.model_dump(mode="json"))) for each in kept)
    assert size <= bounds["max_projection_bytes"]
    for name in ("receipts", "exposures", "items"):
        every = getattr(cut, f"observed_{name}") + getattr(cut, f"omitted_{name}_at_least")
        assert every == getattr(whole, f"observed_{name}")
    assert cut.truncated == bool(cut.omitted_receipts_at_least or cut.omitted_exposures_at_least)
    assert (cut.reason is None) == (cut.status == "complete")


# Logs that contradict themselves, and tools that say anything.


@pytest.mark.parametrize(
    "told",
    [
        [exposed(1, item("a"))],
        [recalled(1, item("a")), exposed(1, item("a"), recalls=(1, 2))],
        [exposed(1, item("a")), recalled(1, item("a"))],
        [(E.RECALL_FAILED, {"recall": 1, "step": 1, "code": "timed_out"}), exposed(1, item("a"))],
    ],
    ids=["no receipt", "one receipt too few", "the receipt comes after", "the recall failed"],
)
def test_an_exposure_without_its_receipt_is_contradictory(told: list[Told]) -> None:
    found = project(*told)
    assert (found.status, found.reason, found.is_empty) == ("contradictory", "contradictory_lineage", False)
    assert found.observed_exposures == 1


def test_a_cut_log_that_contradicts_itself_is_both() -> None:
    found = project(exposed(1, item("a")), max_exposures=0)
    assert (found.status, found.truncated, found.omitted_exposures_at_least) == ("contradictory", True, 1)


def test_a_receipt_that_a_bound_leaves_out_is_a_receipt_all_the_same() -> None:
    assert project(*TWO, max_receipts=0).status == "truncated"


MALFORMED: list[Any] = [
    None,
    1,
    "cayu.knowledge",
    [],
    ["cayu.knowledge"],
    {},
    {"type": "cayu.knowledge"},
    {"type": ["cayu.knowledge"], "items": [["a", 1]]},
    {"type": "other", "items": [["a", 1]]},
    {"type": "cayu.knowledge", "items": None},
    {"type": "cayu.knowledge", "items": "ab"},
    {"type": "cayu.knowledge", "items": {"a": 1}},
    {"type": "cayu.knowledge", "items": [None, 1, "ab", {}, {"a": 1}, []]},
    {
        "type": "cayu.knowledge",
        "items": [["a"], ["a", 1, 2], [1, "a"], ["a", "1"], ["a", 1.0], ["a", True], [["a"], 1]],
    },
]


@pytest.mark.parametrize("artifact", MALFORMED, ids=repr)
def test_an_artifact_that_is_not_well_formed_says_nothing_and_raises_nothing(artifact: Any) -> None:
    beside = {"type": "cayu.knowledge", "items": [["real", 3]]}
    log = records((E.TOOL_STAGED, {"tool_call_id": "c", "artifacts": [artifact, beside]}), started(1))
    assert attribute(log, KEY, BOUNDS).exposures == (
        MemoryExposure(step=1, origin="tool", injected=(alias("real", revision=3),)),
    )
    assert items_seen(log) == {("knowledge", "real", 3)}


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["cayu.knowledge", "items", "type", ""]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "items", "id"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.lists(JUNK, max_size=3))
def test_whatever_a_tool_leaves_nothing_is_raised(artifacts: list[Any]) -> None:
    log = records((E.TOOL_STAGED, {"tool_call_id": "c", "artifacts": artifacts}), started(1))
    found = attribute(log, KEY, BOUNDS)
    assert found.status == "complete"
    assert found.observed_items == len(items_seen(log))


def test_items_seen_are_those_given_as_text() -> None:
    log = records(*TWO, read(["t", 4]), read("junk"))
    assert items_seen(log) == {("knowledge", "a", 1), ("knowledge", "d", 1), ("knowledge", "t", 4)}
    assert items_seen(records(exposed(1, item("m", source="transcript")))) == {("transcript", "m", 1)}


def test_a_recall_that_failed_leaves_no_complete_attribution() -> None:
    """Memory was to stand before the model and did not, so an empty attribution proves nothing."""
    failed = (E.RECALL_FAILED, {"recall": 1, "step": 1, "code": "timed_out"})
    found = project(failed, started(1))
    assert (found.status, found.truncated, found.reason, found.is_empty) == ("truncated", True, "recall_failed", False)
    assert (found.observed_exposures, found.omitted_exposures_at_least) == (0, 0)
    later = project(*ONE, started(1), (E.RECALL_FAILED, {"recall": 2, "step": 2, "code": "error"}), started(2))
    assert (later.status, later.reason, later.observed_receipts) == ("truncated", "recall_failed", 1)
