"""What a caller asks of the executor, and the keys under which a request has its identity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from cayu.canonical import fingerprint, keyed_bytes, keyed_fingerprint, normalise
from cayu.errors import InvalidInput
from cayu.evals.cases import EvalCaseContractV1
from cayu.evals.fields import Count, Exactly, Fingerprint, Id, SessionId
from cayu.interventions.base import Detached, ExecutionModel
from cayu.interventions.specs import MemoryInterventionSpec
from cayu.sessions.requests import RunRequest

MEMORY_INTERVENTION_EXECUTION_MAX_RECORD_BYTES: Final = 1 << 20
MEMORY_INTERVENTION_EXECUTION_MAX_TIMEOUT_SECONDS: Final = 3600
MEMORY_INTERVENTION_EXECUTION_RECORD_SCHEMA_VERSION: Final = 2
MEMORY_INTERVENTION_EXECUTION_SCHEMA_VERSION: Final = 1
MIN_SECRET_BYTES = 16
OWNED = ("session_id", "task_id", "parent_session_id", "causal_budget_id")
"""Fields of a run request that belong to the executor."""


@dataclass(frozen=True, slots=True, repr=False)
class RuntimeSessionCreateClaimReferenceKey:
    """A key that can name the session of a trial, and nothing else."""

    key_id: str
    secret: bytes


@dataclass(frozen=True, slots=True, repr=False)
class MemoryInterventionRequestFingerprintKey:
    """A secret under which requests have their identity, the same after every restart.

    `secret` has at least 16 bytes. It never shows in a representation, an error or a record.
    """

    key_id: str
    secret: bytes

    def __post_init__(self) -> None:
        """Raise `InvalidInput` for a key that is none."""
        key_id: object = self.key_id
        secret: object = self.secret
        if not isinstance(key_id, str) or not key_id.strip() or key_id != key_id.strip():
            raise InvalidInput("A request key has an id that is not blank and not padded.")
        if not isinstance(secret, bytes) or len(secret) < MIN_SECRET_BYTES:
            raise InvalidInput(f"The secret of request key {self.key_id!r} is no bytes value of {MIN_SECRET_BYTES} up.")

    def fingerprint(self, request: MemoryInterventionTrialRequest) -> str:
        """Return the identity of a request under this key, 64 hexadecimal digits."""
        return keyed_fingerprint(self.secret, "cayu.memory-intervention-request", request.identity_material())

    def runtime_session_create_reference_key(self) -> RuntimeSessionCreateClaimReferenceKey:
        """Return the key derived from this one that names sessions; the secret cannot be found from it."""
        derived = keyed_bytes(self.secret, "cayu.runtime-session-create-reference", self.key_id)
        return RuntimeSessionCreateClaimReferenceKey(key_id=self.key_id, secret=derived)


def memory_intervention_request_key(
    keys: Mapping[str, MemoryInterventionRequestFingerprintKey], key_id: str
) -> MemoryInterventionRequestFingerprintKey:
    """Return the key of an id. Raises `InvalidInput` for one that is not, or no longer, among `keys`."""
    found = keys.get(key_id)
    if found is None or found.key_id != key_id:
        raise InvalidInput(f"There is no request key {key_id!r}; keep a rotated key for as long as its trials matter.")
    return found


class RuntimeSessionCreateClaimReference(ExecutionModel):
    """The durable word that a session belongs to one trial, given before the session exists."""

    session_id: SessionId
    operation_id: Fingerprint
    """The fingerprint of the trial's operation."""
    request_authority_key_id: Id
    request_authority_hmac_sha256: Fingerprint
    claim_id: Id

    @classmethod
    def made(
        cls, key: RuntimeSessionCreateClaimReferenceKey, session_id: str, operation_id: str, claim_id: str
    ) -> RuntimeSessionCreateClaimReference:
        """Return the reference that `key` gives."""
        return cls(
            session_id=session_id,
            operation_id=operation_id,
            request_authority_key_id=key.key_id,
            request_authority_hmac_sha256=_authority(key, session_id, operation_id, claim_id),
            claim_id=claim_id,
        )

    def is_of(self, key: RuntimeSessionCreateClaimReferenceKey) -> bool:
        """True when this very reference was given by `key`."""
        return self == self.made(key, self.session_id, self.operation_id, self.claim_id)


def _authority(key: RuntimeSessionCreateClaimReferenceKey, *material: str) -> str:
    return keyed_fingerprint(key.secret, "cayu.runtime-session-create-claim", list(material))


class MemoryInterventionTrialRequest(ExecutionModel):
    """Execute one fixed intervention for one case.

    The ids of session, task, parent and budget follow from the request; a run request that brings its own is refused,
    so that no trial joins what belongs to others.
    """

    schema_version: Annotated[Literal[1], Exactly] = MEMORY_INTERVENTION_EXECUTION_SCHEMA_VERSION
    spec: Annotated[MemoryInterventionSpec, Detached]
    candidate_id: Id
    """The memory variant that is tried; trials of one candidate may share their memory's changes."""
    trial_id: Id
    case: Annotated[EvalCaseContractV1, Detached]
    run_request: Annotated[RunRequest, Detached]
    context_preparation: Literal["none", "compact_then_resume"] = Field(
        default="none", exclude_if=lambda value: value == "none"
    )
    """`compact_then_resume` runs all messages but the last, compacts by the agent's policy, resumes with the last."""
    timeout_seconds: Annotated[Count, Field(ge=1, le=MEMORY_INTERVENTION_EXECUTION_MAX_TIMEOUT_SECONDS)] = 300
    """How long the session may take, from its claim on."""

    @model_validator(mode="after")
    def _is_isolated(self) -> Self:
        given = [name for name in OWNED if getattr(self.run_request, name) is not None]
        if given:
            raise ValueError(f"the executor chooses {', '.join(given)} of a trial; leave it out")
        if self.context_preparation == "compact_then_resume":
            messages = self.run_request.messages
            if len(messages) < 2 or messages[-1].role != "user":
                raise ValueError("compact_then_resume needs messages to compact and, last, one of the user")
        return self

    def identity_material(self) -> dict[str, Any]:
        """Return exactly what the request's fingerprint covers, as JSON."""
        material: dict[str, Any] = normalise(self.model_dump(mode="json"))
        return material

    @property
    def execution_id(self) -> str:
        """Names the execution: the same for the same snapshot, candidate and trial, whatever is asked of them."""
        return f"trial-{self._named('execution')}"

    @property
    def session_id(self) -> str:
        """The id of the trial's session."""
        return f"session-{self._named('session')}"

    @property
    def causal_budget_id(self) -> str:
        """The account under which the trial's session and its children spend."""
        return f"budget-{self._named('budget')}"

    def _named(self, kind: str) -> str:
        ids = [self.spec.snapshot_fingerprint, self.candidate_id, self.trial_id]
        return fingerprint(f"cayu.memory-intervention-{kind}", ids)[:40]
