"""Environments: what a run may use, bound by the application and selected by name."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from cayu.errors import KnowledgeScopeError
from cayu.identity import ExecutionProfileBehaviorIdentity
from cayu.knowledge.records import KnowledgeAccessScope
from cayu.knowledge.store import KnowledgeStore
from cayu.messages import Frozen


class EnvironmentSpec(Frozen):
    """What an environment is, as far as it can be written down."""

    name: str = Field(min_length=1, max_length=256)
    metadata: dict[str, Any] = {}
    """For the application; not part of the environment's identity."""
    execution_profile_identity: ExecutionProfileBehaviorIdentity | None = None
    """None leaves the environment opaque: sessions under it do not survive a rebuild of the application."""


class Environment:
    """An environment with the live services that its tools receive.

    The knowledge store comes with a scope: its own when it is bound, or `knowledge_access_scope`. Raises
    `KnowledgeScopeError` for a scope other than the bound one, and for a store with none at all.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        *,
        knowledge_store: KnowledgeStore | None = None,
        knowledge_access_scope: KnowledgeAccessScope | None = None,
    ) -> None:
        if knowledge_store is None and knowledge_access_scope is not None:
            raise KnowledgeScopeError(
                "An access scope without a knowledge store binds nothing; pass the store as well."
            )
        if knowledge_store is not None:
            bound = knowledge_store.bound_access_scope()
            scope = knowledge_access_scope or bound
            if scope is None or (bound is not None and bound != scope):
                raise KnowledgeScopeError
            knowledge_store = knowledge_store if bound is not None else knowledge_store.bind(scope)
            knowledge_access_scope = scope
        self.spec = spec
        self.knowledge_store = knowledge_store
        self.knowledge_access_scope = knowledge_access_scope
