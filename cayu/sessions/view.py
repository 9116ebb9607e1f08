"""What a session's log means at one moment: the values that the fold builds and everything else reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cayu.canonical import JSON, fingerprint
from cayu.effects import ToolEffect
from cayu.identity import ExecutionProfile
from cayu.messages import Message
from cayu.sessions.limits import ACCOUNTING, BudgetLimit, RunLimits
from cayu.sessions.states import AWAITING_HUMAN, TERMINAL_CALLS, CallState, RoundState, SessionStatus
from cayu.sessions.streams import StreamRow
from cayu.sessions.texts import unexecuted


@dataclass(frozen=True, slots=True)
class CallResult:
    """What a call gave back, or the fixed text that stands for a call that did not run."""

    content: str
    structured: JSON = None
    artifacts: tuple[JSON, ...] = ()
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """A recorded answer to an approval or a question."""

    action_id: str
    decision: str
    """`approve`, `deny`, `expired`, `answer`."""
    digest: str
    """Of the arguments that were approved, or of the answer."""
    by: str
    at: int
    """Microseconds since 1970, by the store's clock."""
    tool_call_id: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Rejected:
    """An execution profile that was refused."""

    candidate: str
    """Its fingerprint."""
    differences: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Settlement:
    """How it became known whether a call acted that was cut off."""

    outcome: str
    """`completed` or `failed`."""
    source: str
    """`reconciler`, `receipt` or `operator`."""
    by: str
    at: int


@dataclass(frozen=True, slots=True)
class RecoveryReceipt:
    """That one item of a recovery plan was executed."""

    execution_id: str
    plan_id: str
    item_id: str
    action: str
    decisions: str
    """Digest of the decisions that the execution was given for this session."""
    sequence: int


@dataclass(slots=True)
class CallView:
    """One call of a round."""

    id: str
    provider_call_id: str
    name: str
    arguments: dict[str, Any]
    digest: str
    """Of the arguments as they run."""
    asked_digest: str
    """Of the arguments as the model gave them."""
    effect: ToolEffect
    parallel_safe: bool
    verdict: str
    """What the round's authorization found: `allow`, `approval`, `question`, or a code of `cayu.sessions.texts`."""
    state: str = CallState.PROPOSED
    reason: str | None = None
    """The policy's or the reviewer's words for a refusal."""
    code: str | None = None
    """Why the call did not run, or how it ended other than by returning."""
    attempt: int = 0
    replayed: bool = False
    requested_at: int | None = None
    expires_at: int | None = None
    question: dict[str, Any] | None = None
    started_at: int | None = None
    ended_at: int | None = None
    edited: bool = False
    result: CallResult | None = None
    settlement: Settlement | None = None
    """Set when the call was cut off and its outcome was found out afterwards."""

    @property
    def answer(self) -> CallResult | None:
        """What the model reads of the call: its result, or the fixed text of one that did not run; None before."""
        if self.result is not None or self.state not in TERMINAL_CALLS:
            return self.result
        return CallResult(content=unexecuted(self.code or "not_started", self.reason), is_error=True)

    @property
    def approval_id(self) -> str:
        """The id under which the call is approved or denied."""
        return f"{self.id}.approval"

    @property
    def input_id(self) -> str:
        """The id under which the call's question is answered."""
        return f"{self.id}.input"

    @property
    def recovery_id(self) -> str:
        """The id under which it is settled whether the call acted."""
        return f"{self.id}.recovery"

    @property
    def action_id(self) -> str:
        """The id of the decision that the call waits for, whichever kind it is."""
        return self.input_id if self.question is not None else self.approval_id


@dataclass(slots=True)
class RoundView:
    """One tool round: the calls of one model step."""

    id: str
    step: int
    calls: list[CallView]
    state: str = RoundState.OPEN
    opened_at: int = 0
    committed_at: int | None = None

    def call(self, call_id: str) -> CallView:
        """Return the call of that id."""
        return next(call for call in self.calls if call.id == call_id)

    @property
    def awaiting(self) -> list[CallView]:
        """The calls that wait for a human, in model order."""
        return [call for call in self.calls if call.state in AWAITING_HUMAN]

    @property
    def unknown(self) -> list[CallView]:
        """The calls of which it is not known whether they acted."""
        return [call for call in self.calls if call.state == CallState.UNKNOWN]


@dataclass(slots=True)
class Usage:
    """Token counts as the provider reported them."""

    input_tokens: int = 0
    output_tokens: int = 0


@dataclass(frozen=True, slots=True)
class RecallView:
    """What was recalled for one message of the user."""

    number: int
    """Within the session, from 1."""
    position: int
    """Index in the transcript of the message that it stands before."""
    items: tuple[Mapping[str, Any], ...] = ()
    """What was considered, with what became of it; empty for a recall that failed."""
    text: str = ""
    """What the model reads, empty when nothing was let in."""


@dataclass(slots=True)
class RunView:
    """The run that the session is in, or was in last: from `run` or `resume` to its end, over pauses and crashes."""

    id: str
    max_steps: int
    limits: RunLimits = field(default_factory=RunLimits)
    budget_limits: tuple[BudgetLimit, ...] = ()
    accounting: int = ACCOUNTING
    steps: int = 0
    tool_calls: int = 0
    usage: Usage = field(default_factory=Usage)
    started_at: int = 0
    resumed: bool = False
    """True when a resume began it, and not the session itself."""
    waited_us: int = 0
    """Time between pauses and the first decision after each, in microseconds."""
    waiting_since: int | None = None
    """When the present pause began; None once its first decision is made."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """What the request of this run brought; tools see it beside the session's."""


@dataclass(slots=True)
class SessionView:
    """A session as its log tells it."""

    row: StreamRow
    status: str = SessionStatus.PENDING
    version: int = 0
    run: RunView = field(default_factory=lambda: RunView(id="", max_steps=0))
    profile: ExecutionProfile = field(default_factory=lambda: ExecutionProfile({}))
    transcript: list[Message] = field(default_factory=list)
    queued: list[Message] = field(default_factory=list)
    """Messages that came while a round was open; they follow its results."""
    recalls: list[RecallView] = field(default_factory=list)
    """Those of the transcript, in its order."""
    recalled: int = 0
    """Recalls of the whole session."""
    exposed: tuple[int, tuple[int, ...]] = (0, ())
    """The last exposure to memory on record: the model step, and the numbers of the recalls that its request held."""
    compacted: list[str] = field(default_factory=list)
    """Texts of the user's and the agent's messages that compaction has taken out of the transcript."""
    rounds: list[RoundView] = field(default_factory=list)
    decisions: dict[str, Decision] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    model_steps: int = 0
    tool_calls: int = 0
    started_at: int = 0
    updated_at: int = 0
    error: dict[str, Any] | None = None
    interruption: dict[str, Any] | None = None
    interrupted_at: int | None = None
    """Microseconds since 1970, while the session is interrupted."""
    interrupt_requested: bool = False
    interrupt_requested_at: int | None = None
    """When the first request came that has not been followed by a resume; microseconds since 1970."""
    cascade: Any = None
    """What the last interrupt request says of the tree it belongs to; None when it names none."""
    model_in_flight: bool = False
    """True when a model step's start is durable and nothing of how it ended is."""
    reservations: dict[str, str] = field(default_factory=dict)
    """Budget reservations that are not settled: reservation id -> budget id."""
    receipts: dict[str, RecoveryReceipt] = field(default_factory=dict)
    """Executed recovery items by execution id."""
    rejected: Rejected | None = None
    """The profile that was refused last, so that a repeat adds no second refusal."""

    @property
    def open_round(self) -> RoundView | None:
        """The round that has not been committed, if there is one."""
        if self.rounds and self.rounds[-1].state == RoundState.OPEN:
            return self.rounds[-1]
        return None

    @property
    def awaiting(self) -> list[CallView]:
        """The calls that wait for a human."""
        return self.open_round.awaiting if self.open_round else []

    @property
    def final_text(self) -> str:
        """The text of the last assistant message."""
        for message in reversed(self.transcript):
            if message.role == "assistant":
                return message.plain_text
        return ""


def arguments_digest(name: str, arguments: JSON) -> str:
    """Return what an approval covers: the tool's name with its exact arguments, as 64 hexadecimal digits."""
    return fingerprint("cayu.tool-arguments", [name, arguments])
