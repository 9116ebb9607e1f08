"""What a conversation is cut down to when it is compacted."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from cayu.errors import InvalidInput
from cayu.identity import ExecutionProfileBehaviorIdentity
from cayu.messages import Message


class ContextPolicy(ABC):
    """Decides what of a conversation goes on when `ResumeRequest(compact_context=True)` asks for it."""

    @property
    def execution_profile_identity(self) -> ExecutionProfileBehaviorIdentity | None:
        """Name the behaviour and its version; None leaves the policy opaque to a rebuilt application."""
        return None

    @abstractmethod
    def compact(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the messages that stand in place of `messages`, the whole conversation without the system prompt.

        Plain and deterministic: the answer is stored, and the old messages stay in the session's log.
        """


class RecentTurnsContextPolicy(ContextPolicy):
    """Keeps the last turns, each from a message of the user to the agent's answer, and drops the ones before."""

    def __init__(self, turns: int = 1) -> None:
        """Keep `turns` turns; with 0 the conversation starts anew."""
        if turns < 0:
            raise InvalidInput(f"{turns} turns cannot be kept; give 0 or more.")
        self._turns = turns

    @property
    def execution_profile_identity(self) -> ExecutionProfileBehaviorIdentity:
        """The number of turns is all that decides."""
        return ExecutionProfileBehaviorIdentity(
            name="cayu.recent-turns", behavior_version=f"1:{self._turns}", implementation_version="1"
        )

    def compact(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return the last turns."""
        begins = [index for index, message in enumerate(messages) if message.role == "user"]
        if not self._turns:
            return ()
        return messages[begins[-self._turns] :] if len(begins) >= self._turns else messages
