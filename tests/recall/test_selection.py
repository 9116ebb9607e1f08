"""What recall lets in: never beyond any bound, whatever the candidates are, and text only of what was let in."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cayu.recall import AutomaticRecallMode, AutomaticRecallPolicy
from cayu.recall.selection import (
    HEADING,
    INJECTED,
    LEFT_OUT,
    OFFERED,
    OFFERS,
    Candidate,
    Recalled,
    focus,
    from_transcript,
    rendered,
    select,
)

WANTED = "how cold is the cold room"
WORDS = st.text("ab é\n#-*<>中", max_size=40)
SCORES = st.sampled_from([0.0, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0])
SMALL = st.integers(0, 4)
POLICIES = st.builds(
    AutomaticRecallPolicy,
    mode=st.sampled_from(AutomaticRecallMode),
    minimum_inject_score=SCORES,
    minimum_offer_score=SCORES,
    max_evaluated_candidates=st.integers(1, 12),
    max_injected_items=SMALL,
    max_offered_items=SMALL,
    max_candidate_text_bytes=st.integers(1, 60),
    max_offer_bytes=st.integers(0, 200),
    max_total_bytes=st.integers(0, 500),
)


def candidates(source: Any) -> st.SearchStrategy[list[Candidate]]:
    """Ranked candidates of one source, best first."""
    made = st.builds(
        Candidate,
        id=st.text("xyz\n", min_size=1, max_size=4),
        revision=st.integers(1, 3),
        source=st.just(source),
        title=st.just("") if source == "transcript" else st.sampled_from(["", "Cold room", "Other", "#\n# Cold"]),
        text=WORDS,
        score=SCORES,
    )
    listed = st.lists(made, max_size=12, unique_by=lambda item: item.id)
    return listed.map(lambda items: sorted(items, key=lambda item: (-item.score, item.id)))


def size(text: str) -> int:
    """UTF-8 bytes."""
    return len(text.encode())


def of(found: Sequence[Recalled], disposition: str) -> list[Recalled]:
    """Those of one disposition."""
    return [each for each in found if each.disposition == disposition]


@settings(max_examples=120, deadline=None, derandomize=True, database=None)
@given(candidates("knowledge"), candidates("transcript"), POLICIES)
def test_no_bound_is_passed(
    knowledge: list[Candidate], transcript: list[Candidate], policy: AutomaticRecallPolicy
) -> None:
    found = select(WANTED, knowledge, transcript, policy)
    injected, offered, left_out = (of(found, name) for name in (INJECTED, OFFERED, LEFT_OUT))
    items = [each.as_json() for each in found]
    text = rendered(items)
    assert len(found) == min(len(knowledge) + len(transcript), policy.max_evaluated_candidates)
    assert len(injected) + len(offered) + len(left_out) == len(found)
    assert len(injected) <= policy.max_injected_items
    assert len(offered) <= policy.max_offered_items
    assert size(text) <= policy.max_total_bytes
    assert size(text) == 0 or injected or offered
    _, _, offers = text.partition(OFFERS)
    assert not offered or size(OFFERS + offers) <= policy.max_offer_bytes
    assert all(size(each.candidate.text) <= policy.max_candidate_text_bytes for each in injected)
    assert all(each.candidate.score >= policy.minimum_inject_score for each in injected)
    assert all(each.candidate.score >= policy.minimum_offer_score for each in offered)
    assert all(each.candidate.source == "knowledge" for each in offered)
    assert not injected or policy.mode.injects
    assert not offered or policy.mode.offers
    assert [each.fused for each in found] == sorted((each.fused for each in found), reverse=True)


@settings(max_examples=80, deadline=None, derandomize=True, database=None)
@given(candidates("knowledge"), candidates("transcript"), POLICIES)
def test_what_is_left_out_is_so_for_a_reason(
    knowledge: list[Candidate], transcript: list[Candidate], policy: AutomaticRecallPolicy
) -> None:
    found = select(WANTED, knowledge, transcript, policy)
    lowest = min(
        policy.minimum_inject_score if policy.mode.injects else 1.0,
        policy.minimum_offer_score if policy.mode.offers else 1.0,
    )
    for each in found:
        if each.disposition != LEFT_OUT:
            assert each.reason == ""
            continue
        assert each.reason in {"score", "bytes", "items", "mode"}
        usable = policy.mode.injects or (policy.mode.offers and each.candidate.source == "knowledge")
        assert (each.reason == "mode") == (not usable)
        if each.reason == "items":
            assert policy.max_injected_items == len(of(found, INJECTED)) or policy.max_offered_items == len(
                of(found, OFFERED)
            )
        if each.candidate.score < lowest and usable:
            assert each.reason == "score"


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(candidates("knowledge"), POLICIES)
def test_a_receipt_holds_the_text_of_what_was_put_in_and_of_nothing_else(
    knowledge: list[Candidate], policy: AutomaticRecallPolicy
) -> None:
    for each in select(WANTED, knowledge, [], policy):
        kept = each.as_json()
        assert ("text" in kept) == (each.disposition == INJECTED)
        assert ("title" in kept) == (each.disposition != LEFT_OUT)
        assert ("reason" in kept) == (each.disposition == LEFT_OUT)
        assert kept["bytes"] == size(each.candidate.text)


def entry(name: str, score: float, text: str = "cold", title: str = "") -> Candidate:
    return Candidate(name, 1, "knowledge", title, text, score)


def shown(found: Sequence[Recalled]) -> list[tuple[str, str, str]]:
    return [(each.candidate.id, each.disposition, each.reason) for each in found]


BOTH = AutomaticRecallPolicy(mode=AutomaticRecallMode.OFFER_AND_STRONG_MATCHES)


def test_each_bound_turns_away_what_comes_after_it() -> None:
    three = [entry(name, 0.9) for name in "abc"]
    strong = AutomaticRecallMode.STRONG_MATCHES
    for bounds, last in (
        ({"mode": strong, "max_injected_items": 2}, (LEFT_OUT, "items")),
        ({"mode": strong, "max_total_bytes": size(HEADING) + 2 * size("\n\ncold")}, (LEFT_OUT, "bytes")),
        ({"mode": strong, "max_total_bytes": size(HEADING) + 3 * size("\n\ncold")}, (INJECTED, "")),
        ({"mode": AutomaticRecallMode.OFFER, "max_offered_items": 2}, (LEFT_OUT, "items")),
        (
            {"mode": AutomaticRecallMode.OFFER, "max_offer_bytes": size(OFFERS) + 2 * size("\n- a: ")},
            (LEFT_OUT, "bytes"),
        ),
        ({"mode": AutomaticRecallMode.OFFER, "max_offer_bytes": size(OFFERS) + 3 * size("\n- a: ")}, (OFFERED, "")),
        ({"mode": AutomaticRecallMode.OFF}, (LEFT_OUT, "mode")),
    ):
        found = select(WANTED, three, [], BOTH.model_copy(update=bounds))
        assert shown(found)[-1][1:] == last, bounds


def test_a_match_too_long_or_too_weak_for_its_text_is_offered() -> None:
    policy = BOTH.model_copy(update={"max_candidate_text_bytes": 10, "max_injected_items": 1})
    found = select(WANTED, [entry("a", 0.9, "c" * 11), entry("b", 0.9), entry("c", 0.9), entry("d", 0.2)], [], policy)
    assert shown(found) == [("a", OFFERED, ""), ("b", INJECTED, ""), ("c", OFFERED, ""), ("d", OFFERED, "")]
    assert rendered([each.as_json() for each in found]) == f"{HEADING}\n\ncold{OFFERS}\n- a: \n- c: \n- d: "


def test_a_title_that_answers_goes_first() -> None:
    found = select(WANTED, [entry("a", 0.5), entry("b", 0.5, title="Cold room")], [], BOTH)
    assert [each.candidate.id for each in found] == ["b", "a"]


def test_ids_of_two_sources_do_not_meet() -> None:
    said = Candidate("a", 1, "transcript", "", "said", 0.9)
    found = select(WANTED, [entry("a", 0.9)], [said], BOTH)
    assert [each.candidate.source for each in found] == ["knowledge", "transcript"]
    assert {each.candidate.text for each in found} == {"cold", "said"}


def test_nothing_shown_is_no_text() -> None:
    assert rendered([]) == ""
    assert rendered([each.as_json() for each in select(WANTED, [entry("a", 0.0)], [], BOTH)]) == ""


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.text(max_size=30), st.integers(1, 40))
def test_the_focus_is_cut_at_a_whole_character(text: str, most: int) -> None:
    cut = focus(text, AutomaticRecallPolicy(max_focus_bytes=most))
    assert text.startswith(cut)
    assert size(cut) <= most
    assert cut == text or size(cut) + size(text[len(cut)]) > most, "no character more would have fitted"


def test_earlier_messages_are_ranked_and_bounded() -> None:
    said = ["nothing of it", "the room", "the cold room", "", "cold cold cold room"]
    found = from_transcript(WANTED, said, AutomaticRecallPolicy())
    assert [item.id for item in found] == ["message-5", "message-3", "message-2"]
    assert [item.score for item in found] == sorted((item.score for item in found), reverse=True)
    assert {item.source for item in found} == {"transcript"}
    [best] = from_transcript(WANTED, said, AutomaticRecallPolicy(max_evaluated_candidates=1))
    assert best.text == "cold cold cold room"


@pytest.mark.parametrize("text", ["", "?!", "\n\n"])
def test_a_message_without_a_word_recalls_nothing_said(text: str) -> None:
    assert from_transcript(text, ["the cold room"], AutomaticRecallPolicy()) == []
