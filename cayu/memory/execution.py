"""The public names of the memory intervention executor, under the module that documents them."""

from cayu.errors import MemoryInterventionExecutionConflict
from cayu.interventions.evidence import MemoryInterventionIsolationAuthority
from cayu.interventions.journal import MemoryInterventionExecutionStore
from cayu.interventions.phases import MemoryInterventionExecutionPhase, MemoryInterventionExecutionStatus
from cayu.interventions.records import MemoryInterventionExecutionRecord
from cayu.interventions.requests import (
    MEMORY_INTERVENTION_EXECUTION_MAX_RECORD_BYTES as MEMORY_INTERVENTION_EXECUTION_MAX_RECORD_BYTES,
)
from cayu.interventions.requests import (
    MEMORY_INTERVENTION_EXECUTION_MAX_TIMEOUT_SECONDS as MEMORY_INTERVENTION_EXECUTION_MAX_TIMEOUT_SECONDS,
)
from cayu.interventions.requests import (
    MEMORY_INTERVENTION_EXECUTION_RECORD_SCHEMA_VERSION as MEMORY_INTERVENTION_EXECUTION_RECORD_SCHEMA_VERSION,
)
from cayu.interventions.requests import (
    MEMORY_INTERVENTION_EXECUTION_SCHEMA_VERSION as MEMORY_INTERVENTION_EXECUTION_SCHEMA_VERSION,
)
from cayu.interventions.requests import (
    MemoryInterventionRequestFingerprintKey,
    MemoryInterventionTrialRequest,
    memory_intervention_request_key,
)
from cayu.interventions.results import (
    MemoryInterventionRuntimeResult,
    MemoryInterventionTrialOutcome,
    memory_intervention_eval_result_revision,
    memory_intervention_runtime_result_fingerprint,
)
from cayu.memory.capabilities import (
    MemoryInterventionEvaluator,
    MemoryInterventionExecutorAuthority,
    MemoryInterventionExecutorStatePaths,
    MemoryInterventionOverlayProvider,
    MemoryInterventionProviderExecutionMode,
    MemoryInterventionRuntimeApplicationFactory,
    MemoryInterventionRuntimeRunner,
    MemoryInterventionRuntimeView,
)
from cayu.memory.executor import MemoryInterventionExecutor
from cayu.memory.runner import CayuMemoryInterventionRuntimeRunner
from cayu.storage.interventions import InMemoryMemoryInterventionExecutionStore, SQLiteMemoryInterventionExecutionStore

__all__ = [
    "CayuMemoryInterventionRuntimeRunner",
    "InMemoryMemoryInterventionExecutionStore",
    "MemoryInterventionEvaluator",
    "MemoryInterventionExecutionConflict",
    "MemoryInterventionExecutionPhase",
    "MemoryInterventionExecutionRecord",
    "MemoryInterventionExecutionStatus",
    "MemoryInterventionExecutionStore",
    "MemoryInterventionExecutor",
    "MemoryInterventionExecutorAuthority",
    "MemoryInterventionExecutorStatePaths",
    "MemoryInterventionIsolationAuthority",
    "MemoryInterventionOverlayProvider",
    "MemoryInterventionProviderExecutionMode",
    "MemoryInterventionRequestFingerprintKey",
    "MemoryInterventionRuntimeApplicationFactory",
    "MemoryInterventionRuntimeResult",
    "MemoryInterventionRuntimeRunner",
    "MemoryInterventionRuntimeView",
    "MemoryInterventionTrialOutcome",
    "MemoryInterventionTrialRequest",
    "SQLiteMemoryInterventionExecutionStore",
    "memory_intervention_eval_result_revision",
    "memory_intervention_request_key",
    "memory_intervention_runtime_result_fingerprint",
]
