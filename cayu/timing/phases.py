"""The names of what is timed, and the one table that says which event's write and delivery belong to which phase."""

from __future__ import annotations

from collections.abc import Mapping

from cayu.events import EventType as E

AUTHORIZATION = "authorization"
"""The policy's answers, at planning and again at dispatch, and what is asked of humans."""
ADMISSION = "admission"
"""Whether a call may begin under the run's limits; and the bytes of the pending round."""
STARTED_PERSISTENCE = "started_persistence"
"""The write that makes starts durable, and their delivery."""
EFFECT_STATE = "effect_state"
"""Intents, and finding out what became of calls that were cut off."""
EXECUTION = "execution"
"""The tool's own time, to the completion of its effect."""
RESULT_PROCESSING = "result_processing"
"""Checking a result against its bounds and making it what is kept."""
STAGING = "staging"
"""The write that makes one finished call's result durable, and its delivery."""
SIBLING_WAIT = "sibling_wait"
"""From a call's own stage to the last one of its round."""
PUBLICATION_QUEUE_WAIT = "publication_queue_wait"
"""From the end of the sibling wait to the start of the call's own publication."""
PUBLICATION = "publication"
"""Preparing a call's terminal event, and its delivery."""
ROUND_COMMIT = "round_commit"
"""The write that closes or pauses the round, and its delivery."""
UNATTRIBUTED = "unattributed"
"""What is left of the round's own work, while no call has an active phase."""

ROUND_PHASES = (
    *(AUTHORIZATION, ADMISSION, STARTED_PERSISTENCE, EFFECT_STATE, EXECUTION, RESULT_PROCESSING),
    *(STAGING, SIBLING_WAIT, PUBLICATION_QUEUE_WAIT, PUBLICATION, ROUND_COMMIT, UNATTRIBUTED),
)
"""The phases of a tool round and of each of its calls, in the order in which a call meets them."""
WAITS = frozenset({SIBLING_WAIT, PUBLICATION_QUEUE_WAIT})
"""Phases that are measured between marks: they overlap other calls' work, and are never added to wall time."""

CONSUMER = ""
"""While whoever iterates over the events has them: the time belongs to no phase."""
ACTIVE_PHASES = tuple(phase for phase in ROUND_PHASES if phase not in WAITS)
"""Phases that are work: in a serial live round they add up to its duration, but for the consumer's time."""

HANDOFF = "handoff"
"""From the last round's commit to the start of the step, with the time that the consumer takes."""
CONTEXT_POLICY = "context_policy"
"""Making the request's context."""
RECALL = "recall"
"""Recalling what the agent may remember."""
COUNTING = "counting"
"""Counting the request's tokens."""
PREPARATION = "preparation"
"""What is left of the step before the provider is asked."""

PREPARATION_PHASES = (HANDOFF, CONTEXT_POLICY, RECALL, COUNTING, PREPARATION)
"""The phases of a model step before its provider is asked, in order."""

PHASE_OF_EVENT: Mapping[str, str] = {
    E.MODEL_STARTED: ADMISSION,
    E.MODEL_COMPLETED: ADMISSION,
    E.ROUND_OPENED: ADMISSION,
    E.TOOL_APPROVAL_REQUESTED: AUTHORIZATION,
    E.SESSION_AWAITING_USER_INPUT: AUTHORIZATION,
    E.TOOL_APPROVED: AUTHORIZATION,
    E.TOOL_APPROVAL_DENIED: AUTHORIZATION,
    E.TOOL_APPROVAL_EXPIRED: AUTHORIZATION,
    E.TOOL_STARTED: STARTED_PERSISTENCE,
    E.EFFECT_INTENT_RECORDED: EFFECT_STATE,
    E.EFFECT_OUTCOME_UNKNOWN: EFFECT_STATE,
    E.EFFECT_RECONCILED: EFFECT_STATE,
    E.TOOL_STAGED: STAGING,
    E.TOOL_COMPLETED: PUBLICATION,
    E.TOOL_FAILED: PUBLICATION,
    E.TOOL_BLOCKED: PUBLICATION,
    E.TOOL_SKIPPED: PUBLICATION,
    E.ROUND_COMMITTED: ROUND_COMMIT,
    E.SESSION_LIMIT_REACHED: ROUND_COMMIT,
    E.SESSION_INTERRUPTED: ROUND_COMMIT,
    E.SESSION_FAILED: ROUND_COMMIT,
}
"""Where an event's bytes and its delivery to sinks count; any other event counts where its write does."""
