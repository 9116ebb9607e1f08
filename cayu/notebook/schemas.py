"""The columns of every frame, declared once: name, dtype, unit and meaning."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from cayu.errors import InvalidInput

TEXT = "string"
TIME = "datetime64[us, UTC]"
COUNT = "Int64"
MILLISECONDS = "Float64"
NUMBER = "Float64"
SET = "category"
FLAG = "boolean"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a frame."""

    name: str
    dtype: str
    meaning: str
    unit: str = ""


_SESSION = Column("session_id", TEXT, "the session")
_ROUND = Column("tool_round_id", TEXT, "the tool round")
_CALL = Column("tool_call_id", TEXT, "the call")
_TOOL = Column("tool_name", TEXT, "the tool")
_BEGAN = Column("started_at", TIME, "the attempt's beginning")
_ENDED = Column("completed_at", TIME, "the attempt's end")
_TRANSACTIONS = Column("store_transactions", COUNT, "transactions begun in stores, reads included")
_COMMITS = Column("store_commit_ms", MILLISECONDS, "commits that had something to commit", "ms")
_BYTES = Column("store_bytes", COUNT, "size of the values that were bound to writes", "bytes")
_INCOMPLETE = Column("incomplete", FLAG, "the attempt paused, or was interrupted or cancelled")
_RECOVERED = Column("recovered", FLAG, "the attempt closed what another process had begun")

SCHEMAS: dict[str, tuple[Column, ...]] = {
    "sessions_df": (
        _SESSION,
        Column("title", TEXT, "as the caller named it"),
        Column("status", SET, "pending, running, interrupting, completed, failed, interrupted"),
        Column("pending", COUNT, "actions that wait for a human"),
        Column("agent_name", TEXT, "the agent"),
        Column("model", TEXT, "the agent's model"),
        Column("provider_name", TEXT, "the model provider"),
        Column("environment_name", TEXT, "the selected environment"),
        Column("model_steps", COUNT, "answers of the model"),
        Column("tool_calls", COUNT, "calls that were dispatched"),
        Column("input_tokens", COUNT, "as the provider reported", "tokens"),
        Column("output_tokens", COUNT, "as the provider reported", "tokens"),
        Column("events", COUNT, "events in the log"),
        Column("run_epoch", COUNT, "how often the session was claimed"),
        Column("created_at", TIME, "first commit"),
        Column("updated_at", TIME, "last commit"),
        Column("instance_id", TEXT, "the public name of this very session"),
    ),
    "events_df": (
        _SESSION,
        Column("sequence", COUNT, "place in the session's log, from 1"),
        Column("type", SET, "the event's type"),
        Column("timestamp", TIME, "commit, by the store's clock"),
        _TOOL,
        _ROUND,
        _CALL,
        Column("payload", TEXT, "the event's content, as JSON"),
    ),
    "messages_df": (
        _SESSION,
        Column("position", COUNT, "message of the conversation, from 1"),
        Column("role", SET, "user, assistant, tool"),
        Column("part", SET, "text, thinking, tool_call, tool_result"),
        Column("text", TEXT, "what was said, asked of a tool, or given back"),
        _TOOL,
        Column("provider_call_id", TEXT, "the provider's id, which links call and result"),
        Column("is_error", FLAG, "the result is an error"),
    ),
    "calls_df": (
        _SESSION,
        _ROUND,
        _CALL,
        Column("step", COUNT, "model step that asked for the call"),
        _TOOL,
        Column("effect", SET, "none, idempotent, external"),
        Column("state", SET, "where the call stands"),
        Column("code", TEXT, "why it did not run, or did not return"),
        Column("attempt", COUNT, "dispatches"),
        Column("replayed", FLAG, "dispatched again after a crash"),
        Column("edited", FLAG, "a reviewer changed the arguments"),
        Column("is_error", FLAG, "the result is an error"),
        Column("arguments", TEXT, "as they ran, as JSON"),
        Column("content", TEXT, "the result that the model read"),
        Column("started_at", TIME, "commit of the first start"),
        Column("ended_at", TIME, "commit of the end"),
        Column("duration_ms", MILLISECONDS, "from start to end, by commits", "ms"),
    ),
    "rounds_df": (
        _SESSION,
        _ROUND,
        Column("model_step_id", TEXT, "the model step whose answer asked for the round"),
        _BEGAN,
        _ENDED,
        Column("duration_ms", MILLISECONDS, "wall time of the attempt, the consumer's included", "ms"),
        Column("calls", COUNT, "calls of the round, those beyond the bound of timing included"),
        Column("active_ms", MILLISECONDS, "all phases but the two waits, which overlap the work of others", "ms"),
        Column("unattributed_ms", MILLISECONDS, "the rest of the round's own work", "ms"),
        _TRANSACTIONS,
        _COMMITS,
        _BYTES,
        _INCOMPLETE,
        _RECOVERED,
        Column("calls_truncated", COUNT, "calls beyond the bound of timing"),
    ),
    "phases_df": (
        _SESSION,
        Column("kind", SET, "tool_round, tool_call, model_step_preparation"),
        Column("tool_round_id", TEXT, "the tool round; of a preparation, the one before it"),
        _CALL,
        Column("tool_name", TEXT, "the tool, if one of that name is registered"),
        Column("phase", SET, "what was being done"),
        Column("started_at", TIME, "first entry; missing when none was seen"),
        Column("completed_at", TIME, "last exit; missing when none was seen"),
        Column("duration_ms", MILLISECONDS, "time in the phase, without phases nested in it", "ms"),
        _TRANSACTIONS,
        Column("store_lock_wait_ms", MILLISECONDS, "waiting for the connection and the write lock", "ms"),
        Column("store_execution_ms", MILLISECONDS, "running statements", "ms"),
        _COMMITS,
        _BYTES,
        _INCOMPLETE,
        _RECOVERED,
    ),
    "approvals_df": (
        _SESSION,
        Column("action_id", TEXT, "the approval's or the question's id"),
        Column("kind", SET, "tool_approval, user_input"),
        _TOOL,
        _ROUND,
        _CALL,
        Column("state", SET, "pending, approve, deny, expired, answer"),
        Column("decided_by", TEXT, "who decided"),
        Column("reason", TEXT, "their words, or the policy's"),
        Column("edited", FLAG, "arguments were changed"),
        Column("arguments", TEXT, "as JSON"),
        Column("arguments_digest", TEXT, "SHA-256 of what the decision covers"),
        Column("question", TEXT, "what was asked"),
        Column("requested_at", TIME, "the pause"),
        Column("expires_at", TIME, "end of the grant"),
        Column("decided_at", TIME, "the decision"),
        Column("waited_ms", MILLISECONDS, "from pause to decision", "ms"),
    ),
    "plan_df": (
        _SESSION,
        Column("agent_name", TEXT, "the agent"),
        Column("status", SET, "where the session stands"),
        Column("action", SET, "what execution does when nothing is decided"),
        Column("blockers", TEXT, "codes of what stands in the way"),
        Column("subject", SET, "what has to be decided: tool_call, model_step"),
        _CALL,
        _TOOL,
        Column("effect", SET, "none, idempotent, external"),
        Column("attempt", COUNT, "dispatches"),
        Column("allowed_actions", TEXT, "what may be decided"),
        Column("optional", FLAG, "it will be found out without a decision, where that is possible"),
        Column("idempotency_key", TEXT, "under which the service may know the call"),
        Column("arguments_digest", TEXT, "SHA-256 of the arguments"),
    ),
    "recall_df": (
        _SESSION,
        Column("recall", COUNT, "the session's recall, from 1"),
        Column("step", COUNT, "model step that it was made for"),
        Column("mode", SET, "off, offer, strong_matches, offer_and_strong_matches"),
        Column("place", COUNT, "place in the order in which memories are let in, from 1"),
        Column("source", SET, "knowledge, transcript"),
        Column("item_id", TEXT, "the memory"),
        Column("revision", COUNT, "its revision"),
        Column("namespace", TEXT, "its namespace"),
        Column("title", TEXT, "its title, if it was let in"),
        Column("score", NUMBER, "how well it answers, from 0 to 1"),
        Column("fused", NUMBER, "weight that gives the place, over all sources"),
        Column("disposition", SET, "injected (its text is shown to the model), offered (its title), left_out"),
        Column("reason", SET, "why it was left out: score, items, bytes, mode"),
        Column("bytes", COUNT, "of its text", "bytes"),
        Column("failure", TEXT, "why the recall failed, if it did"),
        Column("at", TIME, "commit, by the store's clock"),
    ),
    "trials_df": (
        Column("experiment", TEXT, "the experiment"),
        Column("trial_id", TEXT, "the trial"),
        Column("case_id", TEXT, "the question"),
        Column("topic", TEXT, "questions of one topic are not independent"),
        Column("intervention", TEXT, "what was done to the memory"),
        Column("repeat", COUNT, "from 1"),
        Column("attempt", COUNT, "from 1; more after attempts that came to no result"),
        Column("status", SET, "what became of it; error: not executed, not_applicable: nothing to change"),
        Column("phase", SET, "how far the execution has come"),
        Column("score", NUMBER, "from 0 to 1"),
        Column("passed", FLAG, "the score is high enough"),
        Column("expected_seen", FLAG, "every memory that holds the answer stood before the model"),
        Column("exposures", COUNT, "requests to the model that held memory"),
        Column("receipt", SET, "what came of the change of memory: applied, verified_no_change, ..."),
        Column("answer", TEXT, "what the agent said last"),
        Column("duration_ms", MILLISECONDS, "of the session, by commits", "ms"),
        _SESSION,
        Column("execution_id", TEXT, "in the journal"),
        Column("failure", TEXT, "the failure code, or the error's class"),
    ),
    "effects_df": (
        Column("experiment", TEXT, "the experiment"),
        Column("intervention", TEXT, "what was done to the memory"),
        Column("questions", COUNT, "with a score in both arms"),
        Column("topics", COUNT, "that they belong to"),
        Column("baseline", NUMBER, "mean score of these questions without the intervention, from 0 to 1"),
        Column("score", NUMBER, "mean score with it"),
        Column("difference", NUMBER, "mean of score less baseline, from -1 to 1; below 0 the intervention costs score"),
        Column("standard_error", NUMBER, "of the difference, clustered by topic; 0 when all questions differ alike"),
        Column("low", NUMBER, "lower end of the 95 % interval"),
        Column("high", NUMBER, "upper end"),
        Column("p_value", NUMBER, "of the permutation test over topics; with fewer than 6 never below 0.05"),
        Column("p_holm", NUMBER, "corrected over the experiment's interventions"),
        Column("smallest_detectable", NUMBER, "effect found with a power of 80 % at the 5 % level, without correction"),
        Column("incomparable", COUNT, "pairs left out, since they differ in more than the intervention"),
        Column("unscored", COUNT, "pairs left out, since one has no score"),
        Column("reasons", TEXT, "why pairs are not comparable"),
    ),
    "errors_df": (
        Column("at", TIME, "when it was caught"),
        Column("source", TEXT, "where in the notebook side"),
        _SESSION,
        Column("type", TEXT, "the exception's class"),
        Column("message", TEXT, "the exception's words"),
        Column("read", FLAG, "shown before"),
    ),
}


def columns_of(frame: str) -> tuple[Column, ...]:
    """Return a frame's columns. Raises `InvalidInput` for an unknown frame."""
    if frame not in SCHEMAS:
        raise InvalidInput(f"There is no frame {frame!r}; frames: {', '.join(sorted(SCHEMAS))}.")
    return SCHEMAS[frame]


def schema(frame: str) -> pd.DataFrame:
    """Return a frame's columns with dtype, unit and meaning, as a frame."""
    declared = columns_of(frame)
    return pd.DataFrame(
        {
            "column": [column.name for column in declared],
            "dtype": [column.dtype for column in declared],
            "unit": [column.unit for column in declared],
            "meaning": [column.meaning for column in declared],
        }
    )
