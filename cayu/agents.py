"""What an application says about an agent."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from cayu.messages import Frozen


class AgentSpec(Frozen):
    """An agent: which model answers, and under which instructions."""

    name: str = Field(min_length=1, max_length=256)
    model: str = Field(min_length=1, max_length=256)
    provider_name: str | None = None
    """A registered provider's name; None selects the application's default."""
    system_prompt: str | None = None
    provider_options: dict[str, Any] = {}
    """Handed to the provider as they are; part of the agent's identity."""
    metadata: dict[str, Any] = {}
    """For the application; not part of the agent's identity."""
