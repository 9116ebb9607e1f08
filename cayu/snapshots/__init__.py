"""Snapshots: what an agent was made of and knew at one moment, and isolated copies of it to try things on."""

from cayu.snapshots.components import (
    AgentSnapshotComponentProvider,
    FixedComponent,
    KnowledgeComponent,
    MaterializationClaim,
)
from cayu.snapshots.coordinator import AgentSnapshotCoordinator
from cayu.snapshots.profiles import AgentSnapshotExecutionProfileRef, ProfileComponentRef
from cayu.snapshots.records import (
    AgentSnapshot,
    AgentSnapshotCaptureRequest,
    AgentSnapshotComponent,
    AgentSnapshotMaterialization,
    AgentSnapshotMaterializationRequest,
    AgentSnapshotResultBinding,
    AgentSnapshotTerminalDisposition,
    AgentSnapshotTrialBinding,
    AgentSnapshotTrialStateMode,
    MaterializedComponent,
)
from cayu.snapshots.store import AgentSnapshotStore

__all__ = [
    "AgentSnapshot",
    "AgentSnapshotCaptureRequest",
    "AgentSnapshotComponent",
    "AgentSnapshotComponentProvider",
    "AgentSnapshotCoordinator",
    "AgentSnapshotExecutionProfileRef",
    "AgentSnapshotMaterialization",
    "AgentSnapshotMaterializationRequest",
    "AgentSnapshotResultBinding",
    "AgentSnapshotStore",
    "AgentSnapshotTerminalDisposition",
    "AgentSnapshotTrialBinding",
    "AgentSnapshotTrialStateMode",
    "FixedComponent",
    "KnowledgeComponent",
    "MaterializationClaim",
    "MaterializedComponent",
    "ProfileComponentRef",
]
