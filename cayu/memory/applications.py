"""The factory that comes with Cayu: builds each trial's application by the same function as the application itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from cayu.budgets.ledger import BudgetLedger
from cayu.canonical import fingerprint
from cayu.errors import InvalidInput
from cayu.interventions.evidence import MemoryInterventionOperation
from cayu.interventions.records import MemoryInterventionExecutionRecord
from cayu.interventions.requests import MemoryInterventionTrialRequest
from cayu.interventions.specs import MemoryInterventionSpec
from cayu.memory.capabilities import (
    MemoryInterventionProviderExecutionMode,
    MemoryInterventionRuntimeApplicationFactory,
    MemoryInterventionRuntimeView,
)
from cayu.recall.policy import AutomaticRecallPolicy
from cayu.runtime.app import CayuApp
from cayu.runtime.registry import Assembly, recall_digest
from cayu.sessions.streams import SessionStore
from cayu.snapshots.profiles import AgentSnapshotExecutionProfileRef
from cayu.snapshots.records import AgentSnapshotTrialBinding

BuildApp = Callable[..., Any]
"""`build_app(*, session_store, knowledge_store, budget_ledger, recall) -> CayuApp`, plain or asynchronous."""


class TrialApplicationFactory(MemoryInterventionRuntimeApplicationFactory):
    """Calls `build_app` for each trial, with the trial's overlay and recall policy.

    `build_app` registers the agent with `recall=recall` and an environment over `knowledge_store`, and uses the stores
    that it is given. `assembly` is what such an application gives the agent; it stands for all that come.
    """

    factory_id = "cayu.trial-application"

    def __init__(
        self,
        build_app: BuildApp,
        assembly: Assembly,
        *,
        session_store: SessionStore,
        budget_ledger: BudgetLedger,
        hermetic: bool | None = None,
    ) -> None:
        """`hermetic` says whether all providers work in this process alone; None asks the agent's own.

        Raises `InvalidInput` for an agent without a recall policy of its own.
        """
        if assembly.recall is None:
            words = "has no recall policy; register it with recall=, if need be with the mode off"
            raise InvalidInput(f"Agent {assembly.agent.name!r} {words}.")
        self._build_app = build_app
        self._store = session_store
        self._ledger = budget_ledger
        self._compacts = assembly.context_policy is not None
        self._profile = AgentSnapshotExecutionProfileRef.of(assembly.profile)
        self._recall = assembly.recall
        provider = assembly.profile.components["provider"].digest
        self._configuration = fingerprint("cayu.provider-configuration", [provider, assembly.agent.provider_options])
        mode = MemoryInterventionProviderExecutionMode
        alone = assembly.provider.hermetic if hermetic is None else hermetic
        self._mode = mode.HERMETIC if alone else mode.LIVE
        self.execution_profile_fingerprint = fingerprint(
            "cayu.trial-application", [self._profile.fingerprint, self._without_recall()]
        )

    @property
    def provider_configuration_fingerprint(self) -> str:
        """Of the provider's identity and the agent's options for it."""
        return self._configuration

    @property
    def provider_execution_mode(self) -> MemoryInterventionProviderExecutionMode:
        """Hermetic for a provider that says so."""
        return self._mode

    @property
    def runtime_session_store(self) -> SessionStore:
        """The store that every application gets."""
        return self._store

    @property
    def runtime_budget_ledger(self) -> BudgetLedger:
        """The ledger that every application gets."""
        return self._ledger

    def expected_execution_profile_fingerprint(self, spec: MemoryInterventionSpec) -> str:
        """Return the snapshot's profile, or the one with recall switched off."""
        off = self._recall.switched_off().fingerprint()
        changed = spec.trial_recall_policy_fingerprint != spec.starting_recall_policy_fingerprint
        if changed and spec.trial_recall_policy_fingerprint == off:
            return self._without_recall()
        return spec.execution_profile_fingerprint

    async def check_request(self, request: MemoryInterventionTrialRequest) -> None:
        """Raise `InvalidInput` for a context preparation without a policy to compact by."""
        if request.context_preparation != "none" and not self._compacts:
            raise InvalidInput("The agent has no context policy; register one to compact by. Nothing was written.")

    async def create(
        self,
        *,
        request: MemoryInterventionTrialRequest,
        execution: MemoryInterventionExecutionRecord,
        trial: AgentSnapshotTrialBinding,
        operation: MemoryInterventionOperation,
        view: MemoryInterventionRuntimeView,
    ) -> CayuApp:
        """Build one application over the trial's overlay."""
        return await built(self._build_app, self._store, self._ledger, view.knowledge_store, view.trial_recall_policy)

    def _without_recall(self) -> str:
        digest = recall_digest(self._recall.switched_off()).digest
        return self._profile.with_component("recall_policy", digest).fingerprint


async def built(
    build_app: BuildApp,
    session_store: SessionStore,
    budget_ledger: BudgetLedger,
    knowledge_store: Any,
    recall: AutomaticRecallPolicy,
) -> CayuApp:
    """Return what `build_app` makes of these stores and this policy."""
    made = build_app(
        session_store=session_store, knowledge_store=knowledge_store, budget_ledger=budget_ledger, recall=recall
    )
    app = await made if inspect.isawaitable(made) else made
    if not isinstance(app, CayuApp):
        raise InvalidInput(f"build_app returned a {type(app).__name__}; it returns a CayuApp.")
    return app
