"""Tests the one ranking: pure in query and entry, bounded, with ties by id and terms that narrow."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cayu.knowledge import KnowledgeEntry, KnowledgeQuery
from cayu.knowledge.ranking import content_tokens, query_tokens, rank, stem, text_score, tokens
from cayu.storage import handbook_entries, handbook_questions, python_topics

TEXT = st.text(max_size=60)


def entry(id: str, text: str, title: str = "") -> KnowledgeEntry:
    return KnowledgeEntry(id=id, text=text, title=title)


def found(query: KnowledgeQuery, *entries: KnowledgeEntry) -> list[str]:
    return [hit.entry.id for hit in rank(query, entries)]


@pytest.mark.parametrize(
    "forms",
    [
        "sample samples sampled sampling samplings",
        "policy policies",
        "carry carried carries carry",
        "stop stopped stopping stops",
        "freeze freezes freezing",
        "kept",
        "glass",
        "é É",
        "STRASSE straße",
    ],
)
def test_close_forms_of_a_word_fall_together(forms: str) -> None:
    assert len({token for form in forms.split() for token in tokens(form)}) == 1


@given(TEXT)
def test_tokens_are_plain_words_of_letters_and_digits(text: str) -> None:
    found = tokens(text)
    assert all(token.isascii() and token.isalnum() and token == token.lower() for token in found)
    assert found == tokens(text)
    assert set(content_tokens(text)) <= set(found)


@given(st.from_regex(r"[a-z]{1,12}", fullmatch=True))
def test_a_stem_is_never_empty(word: str) -> None:
    assert stem(word)


def test_words_without_content_do_not_count_unless_there_are_no_others() -> None:
    assert content_tokens("What is the limit of it?") == tuple(tokens("limit"))
    assert content_tokens("What is it?") == tuple(tokens("what is it"))
    assert content_tokens("?!") == ()
    assert content_tokens("limit limits LIMIT") == tuple(tokens("limit"))


def test_the_tokens_of_a_query_come_from_all_that_it_wants() -> None:
    query = KnowledgeQuery(text="cold room", any_terms=("door",), all_terms=("north wing",), phrases=("the lab",))
    assert set(query_tokens(query)) == set(tokens("cold room door north wing the lab"))
    assert query_tokens(KnowledgeQuery(text="", none_terms=("door",))) == ()


@given(TEXT, TEXT, TEXT)
def test_a_score_lies_between_nothing_and_one(question: str, title: str, text: str) -> None:
    score = text_score(content_tokens(question), title, text)
    assert 0.0 <= score <= 1.0
    assert score == round(score, 6)


def test_a_score_is_zero_without_a_common_word_and_high_for_a_full_match() -> None:
    wanted = content_tokens("cold room temperature")
    assert text_score(wanted, "", "Nothing of that kind.") == 0.0
    assert text_score((), "cold room", "cold room") == 0.0
    full = text_score(wanted, "Cold room temperature", "The temperature of the cold room. " * 20)
    some = text_score(wanted, "", "The cold room.")
    assert 0.0 < some < full
    assert full > 0.95


def test_more_words_titles_and_repetitions_raise_a_score() -> None:
    wanted = content_tokens("cold room")
    one = text_score(wanted, "", "cold")
    assert one < text_score(wanted, "", "cold cold") < text_score(wanted, "", "cold cold cold")
    assert one < text_score(wanted, "", "cold room")
    assert one < text_score(wanted, "cold", "cold")


@pytest.mark.requirement("A028")
@given(st.integers(0, 10_000))
def test_a_score_does_not_depend_on_the_other_entries(seed: int) -> None:
    chosen = random.Random(seed).sample(handbook_entries(), 10)
    query = KnowledgeQuery(text=handbook_questions()[seed % 60].question)
    alone = {hit.entry.id: hit.score for one in chosen for hit in rank(query, [one])}
    assert {hit.entry.id: hit.score for hit in rank(query, chosen)} == alone


def test_the_best_come_first_and_ties_are_in_the_order_of_ids() -> None:
    tied = [entry(id, "the cold room") for id in ("b", "a", "C", "ä", "10", "9")]
    assert found(KnowledgeQuery(text="cold room"), *tied) == ["10", "9", "C", "a", "b", "ä"]
    better = entry("z", "cold room cold room", "cold room")
    assert found(KnowledgeQuery(text="cold room"), *tied, better)[0] == "z"


def test_min_score_is_inclusive() -> None:
    hit = rank(KnowledgeQuery(text="cold room"), [entry("a", "the cold room")])[0]
    assert found(KnowledgeQuery(text="cold room", min_score=hit.score), hit.entry) == ["a"]
    assert found(KnowledgeQuery(text="cold room", min_score=min(1.0, hit.score + 1e-6)), hit.entry) == []


LAB = entry("lab", "The cold room holds samples. Doors are locked at night.", "North wing")
OFFICE = entry("office", "The office has no samples; its door is open. Cold coffee in the room.", "South wing")


@pytest.mark.parametrize(
    "terms,ids",
    [
        ({}, ["lab", "office"]),
        ({"any_terms": ("coffee", "lockers")}, ["office"]),
        ({"any_terms": ("coffee", "locked")}, ["office", "lab"]),
        ({"any_terms": ("nothing of it",)}, []),
        ({"all_terms": ("door", "sample")}, ["lab", "office"]),
        ({"all_terms": ("door", "coffee")}, ["office"]),
        ({"all_terms": ("north wing",)}, ["lab"]),
        ({"none_terms": ("coffee",)}, ["lab"]),
        ({"none_terms": ("coffee", "night")}, []),
        ({"none_terms": ("coffee night",)}, ["lab", "office"]),
        ({"phrases": ("cold room",)}, ["lab"]),
        ({"phrases": ("COLD rooms",)}, ["lab"]),
        ({"phrases": ("room cold",)}, []),
        ({"phrases": ("north wing the cold",)}, ["lab"]),
        ({"phrases": ("cold room", "coffee")}, []),
        ({"any_terms": ("samples",), "none_terms": ("night",)}, ["office"]),
    ],
)
def test_terms_narrow_the_answer(terms: dict[str, Any], ids: list[str]) -> None:
    assert sorted(found(KnowledgeQuery(text="cold room", **terms), LAB, OFFICE)) == sorted(ids)


def test_a_term_without_a_word_excludes_nothing() -> None:
    assert found(KnowledgeQuery(text="cold room", none_terms=("?!",)), LAB) == ["lab"]


def test_terms_alone_are_a_query() -> None:
    assert found(KnowledgeQuery(text="", all_terms=("coffee",)), LAB, OFFICE) == ["office"]
    assert found(KnowledgeQuery(text="", none_terms=("coffee",)), LAB, OFFICE) == []


def test_every_question_finds_its_entry_first() -> None:
    public = [item for item in handbook_entries() if item.visibility == "public" and item.status == "active"]
    missed = []
    for question in handbook_questions():
        inside = [item for item in public if item.namespace == question.namespace]
        hits = rank(KnowledgeQuery(text=question.question, namespace=None), inside)
        if hits[0].entry.id not in question.expected_entries:
            missed.append(question.id)
    assert len(missed) <= 3, missed


def test_a_topic_of_the_language_reference_is_found_by_its_title() -> None:
    hits = rank(KnowledgeQuery(text="lambda", namespace=None), python_topics())
    assert hits[0].entry.id in ("python-lambda", "python-lambdas")
