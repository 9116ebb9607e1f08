"""Tests knowledge stores over every backend: revisions, frontiers, scopes inside the query, and equal answers."""

import itertools
import json
import random
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cayu.errors import KnowledgeEntryNotFound, KnowledgeError, KnowledgeRevisionConflict, KnowledgeScopeError
from cayu.knowledge import (
    BoundKnowledgeStore,
    KnowledgeAccessScope,
    KnowledgeEntry,
    KnowledgeQuery,
    KnowledgeSearchResult,
    KnowledgeStore,
)
from cayu.knowledge.ranking import rank
from cayu.knowledge.records import Selection
from cayu.storage import (
    InMemoryKnowledgeStore,
    SQLiteKnowledgeStore,
    handbook_entries,
    handbook_questions,
    python_topics,
)

EVERYTHING = KnowledgeAccessScope(
    allow_all_namespaces=True,
    allowed_visibilities=("public", "internal", "restricted"),
    allowed_statuses=("active", "archived"),
)
PUBLIC = KnowledgeAccessScope(allow_all_namespaces=True)
LAB = KnowledgeAccessScope(allowed_namespaces=("lab",))
START = datetime(2030, 1, 1, tzinfo=UTC)


class FakeClock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.us = int(START.timestamp()) * 1_000_000

    def now_us(self) -> int:
        return self.us

    def monotonic(self) -> float:
        return self.us / 1e6


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> AsyncIterator[KnowledgeStore]:
    made: KnowledgeStore
    if request.param == "memory":
        made = InMemoryKnowledgeStore(clock=clock)
    else:
        made = SQLiteKnowledgeStore(tmp_path / "knowledge.db", clock=clock)
    yield made
    await made.aclose()


@pytest.fixture
async def both(tmp_path: Path, clock: FakeClock) -> AsyncIterator[tuple[KnowledgeStore, KnowledgeStore]]:
    sqlite = SQLiteKnowledgeStore(tmp_path / "both.db", clock=clock)
    yield InMemoryKnowledgeStore(clock=clock), sqlite
    await sqlite.aclose()


def entry(id: str, text: str = "the cold room", **more: Any) -> KnowledgeEntry:
    return KnowledgeEntry(id=id, text=text, **{"namespace": "lab", **more})


def ids(result: KnowledgeSearchResult | Sequence[KnowledgeEntry]) -> list[str]:
    if isinstance(result, KnowledgeSearchResult):
        return [hit.entry.id for hit in result.hits]
    return [item.id for item in result]


async def search(store: KnowledgeStore, text: str, scope: KnowledgeAccessScope | None = PUBLIC, **more: Any) -> Any:
    return await store.search(KnowledgeQuery(text=text, **{"namespace": None, **more}), scope)


async def fill(store: KnowledgeStore, entries: Sequence[KnowledgeEntry]) -> None:
    if isinstance(store, SQLiteKnowledgeStore):
        await store.write_many(entries)
    else:
        for item in entries:
            await store.create_entry(item)


# Revisions


async def test_a_new_entry_gets_its_revision_and_times(store: KnowledgeStore) -> None:
    assert await store.frontier() == 0
    given = entry("a", title="Cold", labels={"site": "north"}, source_id="1", metadata={"n": [1, None]})
    made = await store.create_entry(given.model_copy(update={"revision": 7}))
    assert made == given.model_copy(update={"revision": 1, "created_at": START, "updated_at": START})
    assert await store.get_entry("a", PUBLIC) == made
    assert await store.frontier() == 1


async def test_a_revision_is_appended_after_the_expected_one(store: KnowledgeStore, clock: FakeClock) -> None:
    await store.create_entry(entry("a", "first"))
    clock.us += 5_000_000
    second = await store.append_entry_revision(entry("a", "second"), expected_revision=1)
    assert (second.revision, second.text) == (2, "second")
    assert (second.created_at, second.updated_at) == (START, START + timedelta(seconds=5))
    assert await store.get_entry("a", PUBLIC) == second
    assert ids(await search(store, "first")) == []
    assert ids(await search(store, "second")) == ["a"]


@pytest.mark.parametrize("expected,actual", [(0, 2), (1, 2), (3, 2)])
async def test_a_stale_writer_is_refused_and_writes_nothing(store: KnowledgeStore, expected: int, actual: int) -> None:
    await store.create_entry(entry("a", "first"))
    await store.append_entry_revision(entry("a", "second"), expected_revision=1)
    with pytest.raises(KnowledgeRevisionConflict) as caught:
        await store.write(entry("a", "third"), expected)
    assert (caught.value.entry_id, caught.value.expected, caught.value.actual) == ("a", expected, actual)
    assert (await store.get_entry("a", PUBLIC)).text == "second"
    assert await store.frontier() == 2


async def test_a_revision_of_nothing_is_refused(store: KnowledgeStore) -> None:
    with pytest.raises(KnowledgeRevisionConflict):
        await store.append_entry_revision(entry("a"), expected_revision=1)
    with pytest.raises(KnowledgeRevisionConflict):
        await store.delete_entry(entry("a"))
    assert await store.frontier() == 0


async def test_a_deleted_entry_is_gone_and_may_come_back(store: KnowledgeStore) -> None:
    made = await store.create_entry(entry("a"))
    await store.delete_entry(made)
    with pytest.raises(KnowledgeEntryNotFound) as caught:
        await store.get_entry("a", PUBLIC)
    assert caught.value.entry_id == "a"
    assert ids(await search(store, "cold room")) == []
    assert ids(await store.list_entries(PUBLIC)) == []
    with pytest.raises(KnowledgeRevisionConflict):
        await store.delete_entry(made)
    with pytest.raises(KnowledgeRevisionConflict):
        await store.append_entry_revision(entry("a"), expected_revision=1)
    again = await store.create_entry(entry("a", "the warm room"))
    assert again.revision == 3
    assert ids(await search(store, "warm room")) == ["a"]
    assert await store.frontier() == 3


async def test_a_deletion_expects_the_current_revision(store: KnowledgeStore) -> None:
    made = await store.create_entry(entry("a"))
    await store.append_entry_revision(entry("a", "new"), expected_revision=1)
    with pytest.raises(KnowledgeRevisionConflict):
        await store.delete_entry(made)
    assert (await store.get_entry("a", PUBLIC)).text == "new"


async def test_entries_are_listed_in_the_order_of_their_ids(store: KnowledgeStore) -> None:
    for id in ("b", "a", "ä", "Z", "10", "9"):
        await store.create_entry(entry(id, namespace="lab" if id != "a" else "office"))
    assert ids(await store.list_entries(PUBLIC)) == ["10", "9", "Z", "a", "b", "ä"]
    assert ids(await store.list_entries(PUBLIC, "office")) == ["a"]
    assert ids(await store.list_entries(LAB)) == ["10", "9", "Z", "b", "ä"]


async def test_what_a_store_gives_out_is_not_its_own_memory(store: KnowledgeStore) -> None:
    given = entry("a", labels={"team": "red"}, metadata={"n": {"m": 1}})
    made = await store.create_entry(given)
    for held in (given, made, await store.get_entry("a", PUBLIC), (await search(store, "cold")).hits[0].entry):
        held.labels["team"] = "blue"
        held.metadata["n"]["m"] = 2
    kept = await store.get_entry("a", PUBLIC)
    assert (kept.labels, kept.metadata) == ({"team": "red"}, {"n": {"m": 1}})


@pytest.mark.parametrize(
    "bad",
    [
        {"expires_at": datetime(2031, 1, 1)},
        {"metadata": {"x": float("nan")}},
        {"metadata": {"x": object()}},
        {"metadata": {1: "x"}},
    ],
    ids=["naive time", "nan", "object", "key"],
)
async def test_an_entry_that_cannot_be_kept_is_refused_before_it_is_written(
    store: KnowledgeStore, bad: dict[str, Any]
) -> None:
    with pytest.raises((ValueError, KnowledgeError)):
        await store.create_entry(entry("a", **bad))
    assert await store.frontier() == 0
    assert ids(await store.list_entries(PUBLIC)) == []


# Frontiers


@pytest.mark.requirement("A028")
async def test_a_past_frontier_answers_as_it_did_then(store: KnowledgeStore) -> None:
    chance = random.Random(7)
    words = ["cold", "room", "door", "sample", "night", "lock"]
    queries = [KnowledgeQuery(text=" ".join(chance.sample(words, 2)), namespace=None, limit=5) for _ in range(4)]
    queries.append(KnowledgeQuery(text="cold room", namespace="lab", all_terms=("cold",)))
    current: dict[str, KnowledgeEntry] = {}
    answers: list[tuple[int, KnowledgeQuery, KnowledgeSearchResult]] = []
    for _ in range(60):
        id = f"e{chance.randrange(12)}"
        fresh = entry(id, " ".join(chance.choices(words, k=4)), namespace=chance.choice(["lab", "office"]))
        if id not in current:
            current[id] = await store.create_entry(fresh)
        elif chance.random() < 0.3:
            await store.delete_entry(current.pop(id))
        else:
            current[id] = await store.append_entry_revision(fresh, expected_revision=current[id].revision)
        query = chance.choice(queries)
        answers.append((await store.frontier(), query, await store.search(query, PUBLIC)))
    assert len({frontier for frontier, _, _ in answers}) == 60
    for frontier, query, before in answers:
        assert before.frontier == frontier
        assert await store.search_at_frontier(query, frontier, PUBLIC) == before
    empty = await store.search_at_frontier(queries[-1], 0, PUBLIC)
    assert (empty.hits, empty.truncated, empty.frontier) == ((), False, 0)


async def test_a_past_frontier_keeps_the_scope_of_that_revision(store: KnowledgeStore) -> None:
    await store.create_entry(entry("a", visibility="restricted"))
    await store.append_entry_revision(entry("a", visibility="public"), expected_revision=1)
    query = KnowledgeQuery(text="cold room", namespace=None)
    assert ids(await store.search_at_frontier(query, 1, PUBLIC)) == []
    assert ids(await store.search_at_frontier(query, 2, PUBLIC)) == ["a"]
    await store.append_entry_revision(entry("a", visibility="restricted"), expected_revision=2)
    assert ids(await search(store, "cold room")) == []


# Bounds


async def test_the_limit_leaves_the_rest_out_and_says_so(store: KnowledgeStore) -> None:
    for number in range(5):
        await store.create_entry(entry(f"e{number}"))
    five = await search(store, "cold room", limit=5)
    assert (ids(five), five.truncated) == ([f"e{number}" for number in range(5)], False)
    two = await search(store, "cold room", limit=2)
    assert (ids(two), two.truncated) == (["e0", "e1"], True)


async def test_the_byte_bound_counts_bytes_of_text(store: KnowledgeStore) -> None:
    for id in ("a", "b"):
        await store.create_entry(entry(id, "cold é" * 3))
    size = len(("cold é" * 3).encode())
    both = await search(store, "cold", max_bytes=2 * size)
    assert (ids(both), both.truncated) == (["a", "b"], False)
    one = await search(store, "cold", max_bytes=2 * size - 1)
    assert (ids(one), one.truncated) == (["a"], True)
    none = await search(store, "cold", max_bytes=1)
    assert (ids(none), none.truncated) == ([], True)


@pytest.mark.parametrize("bad", [{"limit": 0}, {"limit": 1001}, {"max_bytes": 0}, {"min_score": 1.1}, {"tenant": "x"}])
def test_a_query_out_of_bounds_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        KnowledgeQuery(text="x", **bad)


async def test_labels_and_kinds_narrow(store: KnowledgeStore) -> None:
    await store.create_entry(entry("a", labels={"site": "north", "topic": "air"}, kind="fact"))
    await store.create_entry(entry("b", labels={"site": "south"}, kind="policy"))
    await store.create_entry(entry("c", kind="procedure"))
    assert ids(await search(store, "cold")) == ["a", "b", "c"]
    assert ids(await search(store, "cold", labels={"site": "north"})) == ["a"]
    assert ids(await search(store, "cold", labels={"site": "north", "topic": "water"})) == []
    assert ids(await search(store, "cold", labels={"north": "site"})) == []
    assert ids(await search(store, "cold", kinds=("policy", "procedure"))) == ["b", "c"]


async def test_an_expired_entry_leaves_the_scope_when_its_time_comes(store: KnowledgeStore, clock: FakeClock) -> None:
    await store.create_entry(entry("a", expires_at=START + timedelta(seconds=10)))
    with_expired = PUBLIC.model_copy(update={"include_expired": True})
    clock.us += 9_999_999
    assert ids(await search(store, "cold")) == ["a"]
    clock.us += 1
    assert ids(await search(store, "cold")) == []
    assert ids(await store.list_entries(PUBLIC)) == []
    with pytest.raises(KnowledgeEntryNotFound):
        await store.get_entry("a", PUBLIC)
    assert ids(await search(store, "cold", with_expired)) == ["a"]


# Odd texts


ODD = [
    "",
    "   ",
    "?!",
    "the of and",
    'AND " OR NEAR(',
    '"cold room"',
    "cold* room^ -door",
    "tokens: cold",
    "cold) OR (1=1",
    "'; DROP TABLE knowledge; --",
    "NOT",
    "NEAR(cold room, 5)",
    "co\x00ld",
    "\x00",
    "cold\x00room",
    "Kühlraum",
    "\u041a\u0410\u041c\u0415\u0420\u0410",
    "冷たい部屋",
    "\U0001f976 cold",
    "ﬁlter",
    "e\u0301te\u0301",
    "été",
    "\u0130stanbul \u0131stanbul",
    "x" * 20_000,
    " ".join(f"{number:x}" for number in range(4000))[:20_000],
    "%_%",
    "\\",
    "cold\nroom\tdoor",
    "4.2",
    "$int:5",
]


async def test_odd_query_texts_are_answered_alike_by_both(both: tuple[KnowledgeStore, KnowledgeStore]) -> None:
    texts = [text for text in ODD if text] + ["the cold room", "and or near not", "the of", "-door cold", "x y z 1 2 3"]
    for item in both:
        await fill(item, [entry(f"e{number}", text, title=text[:10]) for number, text in enumerate(texts)])
    for text in ODD:
        answers = [await search(item, text, limit=100, max_bytes=10**9) for item in both]
        assert answers[0] == answers[1], text[:40]
        terms = {"any_terms": (text,), "none_terms": ("door",), "phrases": (text[:20],)}
        answers = [await search(item, text, limit=100, max_bytes=10**9, **terms) for item in both]
        assert answers[0] == answers[1], text[:40]


async def test_words_of_the_query_language_are_just_words(store: KnowledgeStore) -> None:
    await store.create_entry(entry("a", "and or near not"))
    await store.create_entry(entry("b", "cold"))
    assert ids(await search(store, "NEAR(")) == ["a"]
    assert ids(await search(store, "the NOT")) == ["a"]
    assert ids(await search(store, "cold OR zebra")) == ["b"]


async def test_unicode_is_folded_on_both_sides(store: KnowledgeStore) -> None:
    await store.create_entry(entry("a", "Die KÜHLRÄUME der Straße"))
    await store.create_entry(entry("b", "冷たい部屋"))
    assert ids(await search(store, "kühlräume")) == ["a"]
    assert ids(await search(store, "STRASSE")) == ["a"]
    assert ids(await search(store, "ku\u0308hlra\u0308ume")) == ["a"]
    assert ids(await search(store, "冷たい部屋")) == ["b"]


# Scopes

VISIBILITIES = ("public", "internal")
STATUSES = ("active", "archived")
SOURCES = (("wiki", "1"), ("wiki", "2"), ("mail", "1"))
LABELS: tuple[dict[str, str], ...] = ({}, {"team": "red"}, {"team": "blue", "site": "north"})


def variety() -> list[KnowledgeEntry]:
    """One entry for each combination of what a scope looks at, all with the same text."""
    combined = itertools.product(("lab", "office"), VISIBILITIES, STATUSES, SOURCES, LABELS, (None, START, "later"))
    return [
        entry(
            f"e{number:03}",
            namespace=namespace,
            visibility=visibility,
            status=status,
            source_type=source[0],
            source_id=source[1],
            labels=labels,
            expires_at=START + timedelta(days=1) if expires == "later" else expires,
        )
        for number, (namespace, visibility, status, source, labels, expires) in enumerate(combined)
    ]


def random_scope(chance: random.Random) -> KnowledgeAccessScope:
    def some(values: Sequence[str]) -> tuple[str, ...]:
        return tuple(chance.sample(values, chance.randint(chance.random() > 0.1, len(values))))

    return KnowledgeAccessScope(
        allowed_namespaces=chance.choice([("lab",), ("office",), ("lab", "office"), ("safe",)]),
        allow_all_namespaces=chance.random() < 0.3,
        required_labels=chance.choice([{}, {}, {"team": "red"}, {"team": "blue"}, {"site": "north", "team": "blue"}]),
        allowed_visibilities=some(VISIBILITIES),
        allowed_source_types=chance.choice([None, some(("wiki", "mail"))]),
        allowed_source_ids=chance.choice([None, some(("1", "2"))]),
        allowed_statuses=some(STATUSES),
        include_expired=chance.random() < 0.5,
    )


@pytest.mark.requirement("A028")
async def test_a_scope_admits_exactly_what_it_says(store: KnowledgeStore) -> None:
    entries = variety()
    await fill(store, entries)
    chance = random.Random(11)
    seen = set()
    for _ in range(60):
        scope = random_scope(chance)
        allowed = [item.id for item in entries if scope.admits(item, START)]
        seen.add(len(allowed))
        assert ids(await store.list_entries(scope)) == allowed
        found = await search(store, "cold room", scope, limit=1000, max_bytes=10**9)
        assert ids(found) == allowed
        assert found.truncated is False
        assert ids(await search(store, "cold room", scope, limit=3)) == allowed[:3]
    assert len(seen) > 10


@pytest.mark.requirement("A028")
async def test_no_query_widens_a_scope(store: KnowledgeStore) -> None:
    await fill(store, variety())
    scope = KnowledgeAccessScope(
        allowed_namespaces=("lab",),
        required_labels={"team": "red"},
        allowed_source_types=("wiki",),
        allowed_source_ids=("1",),
    )
    whole = ids(await store.list_entries(scope))
    assert len(whole) == 2
    widening: list[dict[str, Any]] = [
        {"namespace": "office"},
        {"namespace": "lab"},
        {"labels": {"team": "blue"}},
        {"labels": {"team": "red"}},
        {"kinds": ("fact",)},
        {"any_terms": ("cold",)},
        {"text": "cold room internal archived office mail restricted blue"},
        {"min_score": 0.0, "limit": 1000, "max_bytes": 10**9},
    ]
    for more in widening:
        found = ids(await search(store, **{"text": "cold room", "scope": scope, **more}))
        assert found in (whole, [])
    assert ids(await search(store, "cold room", scope, namespace="office")) == []
    assert ids(await search(store, "cold room", scope, labels={"team": "blue"})) == []


@pytest.mark.requirement("A028")
async def test_entries_outside_a_scope_move_nothing_inside_it(store: KnowledgeStore) -> None:
    inside = [entry("a", "the cold room"), entry("b", "the cold door", title="cold"), entry("c", "a warm room")]
    for item in inside:
        await store.create_entry(item)
    scope = KnowledgeAccessScope(allowed_namespaces=("lab",), required_labels={})
    before = await search(store, "cold room door", scope, limit=2)
    forbidden: list[dict[str, Any]] = [{"namespace": "safe"}, {"visibility": "internal"}, {"status": "archived"}]
    for number in range(60):
        more = forbidden[number % 3]
        await store.create_entry(entry(f"0{number}", "cold room door " * (1 + number % 4), title="cold room", **more))
    after = await search(store, "cold room door", scope, limit=2)
    assert (after.hits, after.truncated) == (before.hits, before.truncated)
    assert after.truncated is True
    one = await search(store, "cold room door", scope, limit=3)
    assert (len(one.hits), one.truncated) == (3, False)


@pytest.mark.requirement("A027")
async def test_a_namespace_filter_does_not_authorise(store: KnowledgeStore) -> None:
    await store.create_entry(entry("a", namespace="safe"))
    await store.create_entry(entry("b", namespace="lab"))
    for reader, scope in ((store, LAB), (store.bind(LAB), None), (store.bind(LAB), LAB)):
        assert ids(await search(reader, "cold room", scope, namespace="safe")) == []
        assert ids(await reader.list_entries(scope, "safe")) == []
        with pytest.raises(KnowledgeEntryNotFound):
            await reader.get_entry("a", scope)
        assert ids(await search(reader, "cold room", scope, namespace=None)) == ["b"]
        assert ids(await search(reader, "cold room", scope, namespace="lab")) == ["b"]


ODD_NAMES = ["a", "a\x00b", "a\x00c", "\x00", "", "A", "á", "a'b", 'a"b', "a,b", "[]", "null", "1", "1.0", " a", "a "]


@pytest.mark.requirement("A028")
async def test_scopes_compare_whole_values_whatever_stands_in_them(store: KnowledgeStore) -> None:
    for number, name in enumerate(ODD_NAMES):
        labels = {"team": name, name: "team"}
        namespace = name or "empty"
        await store.create_entry(
            entry(f"e{number:02}", labels=labels, source_type=name, source_id=name, namespace=namespace)
        )
    for number, name in enumerate(ODD_NAMES):
        scopes: list[dict[str, Any]] = [
            {"required_labels": {"team": name}},
            {"required_labels": {name: "team"}},
            {"allowed_source_types": (name,)},
            {"allowed_source_ids": (name,)},
        ]
        for more in scopes:
            found = await store.list_entries(KnowledgeAccessScope(allow_all_namespaces=True, **more))
            assert ids(found) == [f"e{number:02}"], more
        scope = KnowledgeAccessScope(allowed_namespaces=(name or "empty",))
        assert ids(await store.list_entries(scope)) == [f"e{number:02}"]
        assert ids(await search(store, "cold", namespace=name or "empty")) == [f"e{number:02}"]


# Binding


@pytest.mark.requirement("A023")
async def test_every_store_is_a_knowledge_store_and_tells_its_scope(store: KnowledgeStore) -> None:
    assert isinstance(store, KnowledgeStore)
    assert store.bound_access_scope() is None
    bound = store.bind(LAB)
    assert isinstance(bound, KnowledgeStore)
    assert bound.bound_access_scope() == LAB
    assert bound.bind(LAB).bound_access_scope() == LAB


@pytest.mark.requirement("A025")
async def test_an_answer_can_be_written_as_json(store: KnowledgeStore) -> None:
    bound = store.bind(LAB)
    later = START + timedelta(days=1)
    await store.create_entry(entry("a", labels={"x": "é"}, metadata={"n": [1, None]}, expires_at=later))
    found = await bound.search(KnowledgeQuery(text="cold", namespace="lab"))
    payload = found.model_dump(mode="json")
    assert KnowledgeSearchResult.model_validate(json.loads(json.dumps(payload, allow_nan=False))) == found
    assert payload["hits"][0]["entry"]["text"] == "the cold room"


@pytest.mark.requirement("A032")
@pytest.mark.parametrize(
    "other",
    [
        KnowledgeAccessScope(allowed_namespaces=("lab",), required_labels={"team": "red"}),
        KnowledgeAccessScope(allowed_namespaces=("lab", "office")),
        KnowledgeAccessScope(allow_all_namespaces=True),
    ],
    ids=["narrower", "wider", "widest"],
)
async def test_another_scope_than_the_bound_one_is_an_error(store: KnowledgeStore, other: KnowledgeAccessScope) -> None:
    await store.create_entry(entry("a", labels={"team": "red"}))
    bound = store.bind(LAB)
    query = KnowledgeQuery(text="cold", namespace="lab")
    refused: list[Callable[[], Any]] = [
        lambda: bound.search(query, access_scope=other),
        lambda: bound.search_at_frontier(query, 1, other),
        lambda: bound.get_entry("a", other),
        lambda: bound.list_entries(other),
        lambda: bound.select(Selection(scope=other)),
    ]
    for call in refused:
        with pytest.raises(KnowledgeScopeError):
            await call()
    with pytest.raises(KnowledgeScopeError):
        bound.bind(other)
    with pytest.raises(KnowledgeScopeError):
        BoundKnowledgeStore(bound, other)
    assert ids(await bound.search(query, access_scope=LAB.model_copy())) == ["a"]
    assert ids(await bound.search(query)) == ["a"]


@pytest.mark.requirement("A032")
async def test_an_unbound_store_answers_nobody_without_a_scope(store: KnowledgeStore) -> None:
    query = KnowledgeQuery(text="cold", namespace="lab")
    refused: list[Callable[[], Any]] = [
        lambda: store.search(query),
        lambda: store.search_at_frontier(query, 0),
        lambda: store.get_entry("a"),
        lambda: store.list_entries(),
    ]
    for call in refused:
        with pytest.raises(KnowledgeScopeError):
            await call()


async def test_a_bound_store_writes_within_its_scope_only(store: KnowledgeStore) -> None:
    bound = store.bind(LAB)
    mine = await bound.create_entry(entry("mine"))
    theirs = await store.create_entry(entry("theirs", namespace="safe"))
    with pytest.raises(KnowledgeScopeError):
        await bound.create_entry(entry("new", namespace="safe"))
    with pytest.raises(KnowledgeScopeError):
        await bound.append_entry_revision(entry("mine", namespace="safe"), expected_revision=1)
    with pytest.raises(KnowledgeError):
        await bound.append_entry_revision(entry("theirs", namespace="lab"), expected_revision=1)
    with pytest.raises(KnowledgeError):
        await bound.delete_entry(theirs)
    with pytest.raises(KnowledgeError):
        await bound.delete_entry(entry("theirs", namespace="lab"))
    assert await store.frontier() == 2
    await bound.append_entry_revision(entry("mine", "new"), expected_revision=mine.revision)
    assert await bound.frontier() == 3
    await bound.aclose()
    assert ids(await store.list_entries(PUBLIC)) == ["mine", "theirs"]


# Equal answers


@pytest.mark.slow
async def test_the_handbook_is_answered_alike_by_both(both: tuple[KnowledgeStore, KnowledgeStore]) -> None:
    entries = handbook_entries()
    readers = []
    for item in both:
        await fill(item, entries)
        readers += [(item, PUBLIC), (item, EVERYTHING), (item.bind(PUBLIC), None), (item.bind(EVERYTHING), None)]
    for question in handbook_questions():
        for namespace in (question.namespace, None):
            query = KnowledgeQuery(text=question.question, namespace=namespace)
            answers = [(await reader.search(query, scope)).model_dump(mode="json") for reader, scope in readers]
            assert answers[0] == answers[2] == answers[4] == answers[6]
            assert answers[1] == answers[3] == answers[5] == answers[7]
            expected = [(hit.entry.id, hit.score) for hit in rank(query, _inside(entries, PUBLIC, namespace))[:10]]
            assert [(hit["entry"]["id"], hit["score"]) for hit in answers[0]["hits"]] == expected
            assert expected[0][0] in question.expected_entries or namespace is None


def _inside(
    entries: Sequence[KnowledgeEntry], scope: KnowledgeAccessScope, namespace: str | None
) -> list[KnowledgeEntry]:
    return [item for item in entries if scope.admits(item, START) and namespace in (None, item.namespace)]


@pytest.mark.slow
async def test_the_language_reference_is_answered_alike_by_both(both: tuple[KnowledgeStore, KnowledgeStore]) -> None:
    topics = python_topics()
    for item in both:
        await fill(item, topics)
    for topic in topics[::3]:
        query = KnowledgeQuery(text=topic.title.replace("-", " "), namespace="python", limit=5, max_bytes=10**7)
        answers = [await item.search(query, PUBLIC) for item in both]
        assert answers[0] == answers[1], topic.id
        assert answers[0].hits, topic.id


async def test_loading_a_collection_is_all_or_nothing(tmp_path: Path) -> None:
    store = SQLiteKnowledgeStore(tmp_path / "k.db")
    assert await store.write_many([entry("a"), entry("b")]) == 2
    with pytest.raises(KnowledgeRevisionConflict):
        await store.write_many([entry("c"), entry("a")])
    assert ids(await store.list_entries(PUBLIC)) == ["a", "b"]
    await store.aclose()


async def test_a_second_connection_sees_what_the_first_has_written(tmp_path: Path) -> None:
    first, second = (SQLiteKnowledgeStore(tmp_path / "k.db") for _ in range(2))
    await first.create_entry(entry("a"))
    assert ids(await search(second, "cold")) == ["a"]
    await second.append_entry_revision(entry("a", "warm"), expected_revision=1)
    assert ids(await search(first, "cold")) == []
    with pytest.raises(KnowledgeRevisionConflict):
        await first.append_entry_revision(entry("a", "hot"), expected_revision=1)
    for store in (first, second):
        await store.aclose()
