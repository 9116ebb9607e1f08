"""A lab in a process that dies at a crash point, for the tests of timing across processes."""

from __future__ import annotations

from typing import Any

from cayu import AgentSpec, CayuApp, ToolEffect
from cayu.notebook import Lab
from cayu.providers import ModelRequest, ModelStreamEvent, ScriptedModelProvider
from cayu.tools import tool

ROUNDS = 3


def build_app(*, session_store: Any = None, **_: Any) -> CayuApp:
    """An agent that looks three words up, one after the other."""

    @tool(version="1", effect=ToolEffect.NONE)
    def look(word: str) -> str:
        """Look a word up."""
        return f"about {word}"

    def play(request: ModelRequest) -> Any:
        said = sum(message.role == "assistant" for message in request.messages)
        return [ModelStreamEvent.tool_call("look", {"word": f"w{said}"}, f"p{said}")] if said < ROUNDS else "done"

    app = CayuApp(session_store=session_store)
    app.register_provider(ScriptedModelProvider([play], repeat_last=True))
    app.register_agent(AgentSpec(name="a", model="m"), tools=[look])
    return app


def run(path: str) -> str:
    """Run one session in a lab."""
    with Lab.open(path, factory=build_app) as lab:
        return lab.run("a", "go", session_id="s").status


def recover(path: str) -> str:
    """Go on with it."""
    with Lab.open(path, factory=build_app) as lab:
        return lab.recover("s").status
