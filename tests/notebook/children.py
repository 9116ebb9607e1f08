"""What the tests of the notebook side run in processes of their own, by path and function."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

_BEFORE = {
    "run": asyncio.run,
    "Task": asyncio.Task,
    "Future": asyncio.Future,
    "new_event_loop": asyncio.new_event_loop,
    "get_event_loop": asyncio.get_event_loop,
    "policy": type(asyncio.get_event_loop_policy()),
    **{
        f"{kind.__name__}.{name}": vars(kind)[name]
        for kind in (asyncio.BaseEventLoop, asyncio.SelectorEventLoop, asyncio.events.AbstractEventLoop)
        for name in vars(kind)
        if callable(vars(kind)[name])
    },
}


def _build(*, session_store: Any = None, **_: Any) -> Any:
    from cayu import AgentSpec, CayuApp, RuntimeConfig, ToolEffect
    from cayu.providers import ModelStreamEvent, ScriptedModelProvider
    from cayu.tools import tool

    @tool(version="1", effect=ToolEffect.NONE)
    async def hold() -> str:
        """Never come back."""
        print("holding", flush=True)
        await asyncio.sleep(60)
        return "never"

    def play(request: Any) -> Any:
        return [ModelStreamEvent.tool_call("hold")] if request.messages[-1].plain_text == "hold" else "done"

    app = CayuApp(session_store=session_store, config=RuntimeConfig(cancel_grace_seconds=0.05))
    app.register_provider(ScriptedModelProvider([play], repeat_last=True))
    app.register_agent(AgentSpec(name="a", model="m"), tools=[hold])
    return app


def _open(folder: str) -> Any:
    from cayu.notebook import Lab

    return Lab.open(Path(folder) / "runs.db", factory=_build)


def changed_asyncio(folder: str) -> list[str]:
    """Import everything, work, and return what of asyncio is not what it was."""
    import cayu_widgets  # noqa: F401

    with _open(folder) as lab:
        lab.run("a", "go")
        asyncio.run(lab.arun("a", "go"))
        assert len(lab.sessions_df()) == 2
    now = {name: getattr(asyncio, name) for name in ("run", "Task", "Future", "new_event_loop", "get_event_loop")}
    now["policy"] = type(asyncio.get_event_loop_policy())
    for kind in (asyncio.BaseEventLoop, asyncio.SelectorEventLoop, asyncio.events.AbstractEventLoop):
        now |= {f"{kind.__name__}.{name}": value for name, value in vars(kind).items() if callable(value)}
    return sorted(name for name in _BEFORE.keys() | now.keys() if _BEFORE.get(name) is not now.get(name))


def interrupted_by_hand(folder: str) -> None:
    """Block in a verb until Ctrl-C, then say how the session stands and whether the lab still works."""
    lab = _open(folder)
    begun = 0.0
    try:
        lab.run("a", "hold", session_id="s")
    except KeyboardInterrupt:
        begun = time.monotonic()
    session = lab.session("s")
    calls = session.calls_df()
    told = {
        "interrupted": begun > 0,
        "status": session.status,
        "calls": calls["state"].astype(str).tolist(),
        "at_work": list(lab.app.services.drives),
        "next": lab.run("a", "go").text,
    }
    lab.close()
    print(json.dumps(told), flush=True)


def forgets_to_close(folder: str, how: str) -> None:
    """Leave a lab open at the end of the script, in one of several ways."""
    lab = _open(folder)
    lab.run("a", "go")
    if how == "at work":
        threading.Thread(target=_ignoring, args=(lab,), daemon=True).start()
        while not lab.app.services.drives:
            time.sleep(0.01)
    print("the end", flush=True)
    if how == "raising":
        raise SystemExit("an error at the end")


def _ignoring(lab: Any) -> None:
    try:
        lab.run("a", "hold", session_id="s")
    except BaseException as error:
        print(type(error).__name__, flush=True)


def writes(folder: str, sessions: int) -> None:
    """Run sessions one after the other."""
    with _open(folder) as lab:
        for number in range(sessions):
            lab.run("a", "go", session_id=f"w{number}")
            print(number, flush=True)


def nested(imports: str) -> dict[str, Any]:
    """Ask for nested loops inside a running loop, after importing modules, and use them."""
    for name in imports.split():
        __import__(name)
    from cayu.errors import NestedLoopsRefused
    from cayu.notebook import allow_nested_loops

    before = asyncio.run

    async def inner() -> int:
        await asyncio.sleep(0.01)
        return 42

    async def outer() -> dict[str, Any]:
        try:
            allow_nested_loops()
        except NestedLoopsRefused as error:
            return {"refused": str(error), "untouched": asyncio.run is before}
        return {"inner": asyncio.run(inner())}

    return before(outer())


def nested_in_kernel(version: str) -> dict[str, Any]:
    """The same with a kernel of a given version loaded."""
    from types import ModuleType

    kernel = ModuleType("ipykernel")
    kernel.__version__ = version  # type: ignore[attr-defined]
    sys.modules["ipykernel"] = kernel
    return nested("")


if __name__ == "__main__":
    os.environ.pop("CAYU_HEADLESS", None)
    globals()[sys.argv[1]](*(int(each) if each.isdigit() else each for each in sys.argv[2:]))
