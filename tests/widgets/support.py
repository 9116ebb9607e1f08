"""A small scripted application over a real SQLite lab, and patience for what happens on the lab's loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import ipywidgets

from cayu import AgentSpec, CayuApp, ToolEffect
from cayu.errors import LabClosed
from cayu.notebook import Lab
from cayu.providers import ModelStreamEvent, ScriptedModelProvider
from cayu.providers.scripted import Batch
from cayu.tools import AskUserTool, ByEffectToolPolicy, ToolPolicy, tool
from cayu_widgets.live import _listening

PATIENCE = 10.0
AGENT = "clerk"
SENT: list[dict[str, Any]] = []


@tool(version="1", effect=ToolEffect.EXTERNAL)
def send(to: str, text: str = "hello") -> str:
    """Send a letter."""
    SENT.append({"to": to, "text": text})
    return f"sent to {to}"


@tool(version="1", effect=ToolEffect.EXTERNAL)
async def stuck() -> str:
    """Never come back."""
    await asyncio.sleep(60)
    return "never"


FREE = threading.Event()


@tool(version="1", effect=ToolEffect.NONE)
async def pause() -> str:
    """Come back when the test says so."""
    while not FREE.is_set():
        await asyncio.sleep(0.01)
    return "free"


def letters(*recipients: str, text: str = "hello") -> list[ModelStreamEvent]:
    """An answer that asks for letters to be sent."""
    return [
        ModelStreamEvent.tool_call("send", {"to": to, "text": text}, f"p{number}")
        for number, to in enumerate(recipients)
    ]


def question(text: str, **more: Any) -> list[ModelStreamEvent]:
    """An answer that asks the user."""
    return [ModelStreamEvent.tool_call("ask_user", {"question": text, **more}, "q")]


def factory(
    batches: Sequence[Batch] = (letters("ann"), "done"), policy: ToolPolicy | None = None, **ask: Any
) -> Callable[..., CayuApp]:
    """What `Lab.open` builds its application with."""

    def build(*, session_store: Any = None, **_: Any) -> CayuApp:
        app = CayuApp(session_store=session_store)
        app.register_provider(ScriptedModelProvider(batches))
        app.register_agent(
            AgentSpec(name=AGENT, model="scripted"),
            tools=[send, stuck, pause, AskUserTool(**ask)],
            tool_policy=policy or ByEffectToolPolicy(),
        )
        return app

    return build


def until(holds: Callable[[], object], what: str = "") -> None:
    """Wait until something holds, and until what has made it so is at its end on the loops of the labs."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"waited {PATIENCE:g} s in vain for {what or holds}"
        time.sleep(0.01)
    for lab in list(_listening):
        with suppress(LabClosed):
            lab.call(asyncio.sleep(0))


def inside(widget: ipywidgets.Widget) -> list[ipywidgets.Widget]:
    """A widget and everything that is shown in it, in tab order."""
    return [widget, *(each for child in getattr(widget, "children", ()) for each in inside(child))]


def buttons(widget: ipywidgets.Widget) -> dict[str, ipywidgets.Button]:
    """The buttons shown in a widget by their words, in tab order."""
    return {each.description: each for each in inside(widget) if isinstance(each, ipywidgets.Button)}


def html(widget: ipywidgets.Widget) -> str:
    """The HTML shown in a widget."""
    return "".join(each.value for each in inside(widget) if isinstance(each, ipywidgets.HTML))


def settle(lab: Lab) -> None:
    """Let what was submitted to the lab's loop so far do its work."""
    for _ in range(5):
        lab.call(asyncio.sleep(0.01))


def first_lab_action(lab: Lab) -> Any:
    """The action that has waited longest."""
    return lab.pending()[0].action
