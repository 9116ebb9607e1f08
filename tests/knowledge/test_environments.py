"""Tests environments: a knowledge store in one always comes with exactly one scope."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from cayu import Environment, EnvironmentSpec, KnowledgeAccessScope, KnowledgeEntry, KnowledgeQuery
from cayu.errors import KnowledgeScopeError
from cayu.knowledge import KnowledgeStore
from cayu.storage import InMemoryKnowledgeStore, SQLiteKnowledgeStore

SPEC = EnvironmentSpec(name="lab")
SCOPE = KnowledgeAccessScope(allowed_namespaces=("lab", "office"))
NARROWER = KnowledgeAccessScope(allowed_namespaces=("lab",))
WIDER = KnowledgeAccessScope(allow_all_namespaces=True)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> KnowledgeStore:
    return InMemoryKnowledgeStore() if request.param == "memory" else SQLiteKnowledgeStore(tmp_path / "k.db")


def test_a_name_is_all_that_a_spec_needs() -> None:
    assert SPEC.execution_profile_identity is None
    assert SPEC.metadata == {}
    for bad in ({}, {"name": ""}, {"name": "x" * 257}, {"name": "x", "scope": {}}):
        with pytest.raises(ValidationError):
            EnvironmentSpec.model_validate(bad)


def test_an_environment_may_bind_nothing() -> None:
    environment = Environment(SPEC)
    assert environment.spec is SPEC
    assert (environment.knowledge_store, environment.knowledge_access_scope) == (None, None)


def test_a_bound_store_brings_its_scope(store: KnowledgeStore) -> None:
    bound = store.bind(SCOPE)
    for environment in (
        Environment(SPEC, knowledge_store=bound),
        Environment(SPEC, knowledge_store=bound, knowledge_access_scope=bound.bound_access_scope()),
        Environment(SPEC, knowledge_store=bound, knowledge_access_scope=SCOPE.model_copy()),
    ):
        assert environment.knowledge_store is bound
        assert environment.knowledge_access_scope == SCOPE


async def test_an_unbound_store_is_bound_to_the_scope_given(store: KnowledgeStore) -> None:
    await store.create_entry(KnowledgeEntry(id="in", text="A cold room.", namespace="lab"))
    await store.create_entry(KnowledgeEntry(id="out", text="A cold room.", namespace="safe"))
    environment = Environment(SPEC, knowledge_store=store, knowledge_access_scope=SCOPE)
    bound = environment.knowledge_store
    assert bound is not None
    assert bound.bound_access_scope() == SCOPE
    query = KnowledgeQuery(text="cold room", namespace=None)
    for scope in (None, environment.knowledge_access_scope):
        assert [hit.entry.id for hit in (await bound.search(query, access_scope=scope)).hits] == ["in"]
    await store.aclose()


@pytest.mark.requirement("A032")
@pytest.mark.parametrize("other", [NARROWER, WIDER], ids=["narrower", "wider"])
def test_another_scope_than_the_bound_one_is_refused(store: KnowledgeStore, other: KnowledgeAccessScope) -> None:
    with pytest.raises(KnowledgeScopeError):
        Environment(SPEC, knowledge_store=store.bind(SCOPE), knowledge_access_scope=other)


def test_a_store_without_any_scope_is_refused(store: KnowledgeStore) -> None:
    with pytest.raises(KnowledgeScopeError):
        Environment(SPEC, knowledge_store=store)


def test_a_scope_without_a_store_is_refused() -> None:
    with pytest.raises(KnowledgeScopeError, match="without a knowledge store"):
        Environment(SPEC, knowledge_access_scope=SCOPE)


def test_a_scope_names_its_namespaces() -> None:
    with pytest.raises(ValidationError, match="names its namespaces"):
        KnowledgeAccessScope()
    with pytest.raises(ValidationError):
        KnowledgeAccessScope(allowed_namespaces=("lab",), tenant="x")  # type: ignore[call-arg]
