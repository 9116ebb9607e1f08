"""Memory interventions: change what an agent remembers, and see what that memory was worth."""

from cayu.interventions.comparability import MemoryInterventionComparability, MemoryInterventionMismatch
from cayu.interventions.evidence import (
    MemoryInterventionOperation,
    MemoryInterventionReceipt,
    MemoryInterventionReceiptStatus,
    MemoryInterventionTrialBinding,
)
from cayu.interventions.journal import MemoryInterventionRuntimeOwnershipResult
from cayu.interventions.ownership import (
    DurableOperationOwnership,
    DurableOperationOwnershipDisposition,
    DurableOperationOwnershipResult,
    DurableOperationOwnershipState,
    DurableOperationOwnershipTransition,
)
from cayu.interventions.requests import RuntimeSessionCreateClaimReference, RuntimeSessionCreateClaimReferenceKey
from cayu.interventions.specs import (
    MemoryInterventionBounds,
    MemoryInterventionChange,
    MemoryInterventionFixture,
    MemoryInterventionKind,
    MemoryInterventionSpec,
    MemoryNegativeControlKind,
)
from cayu.memory.applications import TrialApplicationFactory
from cayu.memory.evaluators import AnswerEvaluator
from cayu.memory.execution import (
    MEMORY_INTERVENTION_EXECUTION_MAX_RECORD_BYTES as MEMORY_INTERVENTION_EXECUTION_MAX_RECORD_BYTES,
)
from cayu.memory.execution import (
    MEMORY_INTERVENTION_EXECUTION_MAX_TIMEOUT_SECONDS as MEMORY_INTERVENTION_EXECUTION_MAX_TIMEOUT_SECONDS,
)
from cayu.memory.execution import (
    MEMORY_INTERVENTION_EXECUTION_RECORD_SCHEMA_VERSION as MEMORY_INTERVENTION_EXECUTION_RECORD_SCHEMA_VERSION,
)
from cayu.memory.execution import (
    MEMORY_INTERVENTION_EXECUTION_SCHEMA_VERSION as MEMORY_INTERVENTION_EXECUTION_SCHEMA_VERSION,
)
from cayu.memory.execution import (
    CayuMemoryInterventionRuntimeRunner,
    InMemoryMemoryInterventionExecutionStore,
    MemoryInterventionEvaluator,
    MemoryInterventionExecutionConflict,
    MemoryInterventionExecutionPhase,
    MemoryInterventionExecutionRecord,
    MemoryInterventionExecutionStatus,
    MemoryInterventionExecutionStore,
    MemoryInterventionExecutor,
    MemoryInterventionExecutorAuthority,
    MemoryInterventionExecutorStatePaths,
    MemoryInterventionIsolationAuthority,
    MemoryInterventionOverlayProvider,
    MemoryInterventionProviderExecutionMode,
    MemoryInterventionRequestFingerprintKey,
    MemoryInterventionRuntimeApplicationFactory,
    MemoryInterventionRuntimeResult,
    MemoryInterventionRuntimeRunner,
    MemoryInterventionRuntimeView,
    MemoryInterventionTrialOutcome,
    MemoryInterventionTrialRequest,
    SQLiteMemoryInterventionExecutionStore,
    memory_intervention_eval_result_revision,
    memory_intervention_request_key,
    memory_intervention_runtime_result_fingerprint,
)
from cayu.memory.overlay import OverlayKnowledgeStore
from cayu.memory.overlays import KnowledgeOverlayProvider

__all__ = [
    "AnswerEvaluator",
    "CayuMemoryInterventionRuntimeRunner",
    "DurableOperationOwnership",
    "DurableOperationOwnershipDisposition",
    "DurableOperationOwnershipResult",
    "DurableOperationOwnershipState",
    "DurableOperationOwnershipTransition",
    "InMemoryMemoryInterventionExecutionStore",
    "KnowledgeOverlayProvider",
    "MemoryInterventionBounds",
    "MemoryInterventionChange",
    "MemoryInterventionComparability",
    "MemoryInterventionEvaluator",
    "MemoryInterventionExecutionConflict",
    "MemoryInterventionExecutionPhase",
    "MemoryInterventionExecutionRecord",
    "MemoryInterventionExecutionStatus",
    "MemoryInterventionExecutionStore",
    "MemoryInterventionExecutor",
    "MemoryInterventionExecutorAuthority",
    "MemoryInterventionExecutorStatePaths",
    "MemoryInterventionFixture",
    "MemoryInterventionIsolationAuthority",
    "MemoryInterventionKind",
    "MemoryInterventionMismatch",
    "MemoryInterventionOperation",
    "MemoryInterventionOverlayProvider",
    "MemoryInterventionProviderExecutionMode",
    "MemoryInterventionReceipt",
    "MemoryInterventionReceiptStatus",
    "MemoryInterventionRequestFingerprintKey",
    "MemoryInterventionRuntimeApplicationFactory",
    "MemoryInterventionRuntimeOwnershipResult",
    "MemoryInterventionRuntimeResult",
    "MemoryInterventionRuntimeRunner",
    "MemoryInterventionRuntimeView",
    "MemoryInterventionSpec",
    "MemoryInterventionTrialBinding",
    "MemoryInterventionTrialOutcome",
    "MemoryInterventionTrialRequest",
    "MemoryNegativeControlKind",
    "OverlayKnowledgeStore",
    "RuntimeSessionCreateClaimReference",
    "RuntimeSessionCreateClaimReferenceKey",
    "SQLiteMemoryInterventionExecutionStore",
    "TrialApplicationFactory",
    "memory_intervention_eval_result_revision",
    "memory_intervention_request_key",
    "memory_intervention_runtime_result_fingerprint",
]
