"""A program that serves one application with uvicorn, for tests that speak to it from outside and end it by signal."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

import uvicorn
from runtime.support import SESSION, FakeTool, calls, make_app, new_run, play
from server.support import hang, tokens

from cayu import CayuApp, SQLiteSessionStore, ToolContext
from cayu.server import create_server
from cayu.tools import AlwaysRequireApprovalToolPolicy
from cayu.tools.spec import ToolResult

AT_WORK = "at-work"
"""The file by which the tool says that it has begun."""


def build(folder: Path) -> CayuApp:
    """An application whose agent asks for one tool that needs approval and never ends."""

    async def work(ctx: ToolContext, args: dict[str, object]) -> ToolResult:
        (folder / AT_WORK).touch()
        return await hang(ctx, args)

    store = SQLiteSessionStore(folder / "sessions.db")
    return make_app(store, (calls("act"), "done"), [FakeTool("act", work)], AlwaysRequireApprovalToolPolicy())


async def serve(folder: Path) -> None:
    """Let a session come to where it waits, say on which port, and serve until a signal comes."""
    app = build(folder)
    await play(app.run(new_run(SESSION)))
    listening = socket.create_server(("127.0.0.1", 0))
    server = create_server(app, authenticate=tokens())
    config = uvicorn.Config(server, log_level="warning", timeout_graceful_shutdown=3)
    (folder / "port.new").write_text(str(listening.getsockname()[1]))
    os.replace(folder / "port.new", folder / "port")
    await uvicorn.Server(config).serve(sockets=[listening])


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
