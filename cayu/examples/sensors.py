"""A laboratory's sensors: the same three readings, one after the other or all at once, for looking at where time goes.

python -m cayu.examples.sensors     times one serial and one parallel round in the current folder
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from cayu import (
    AgentSpec,
    CayuApp,
    ExecutionProfileBehaviorIdentity,
    Message,
    RunRequest,
    SQLiteSessionStore,
    ToolEffect,
    run_to_completion,
    tool,
)
from cayu.providers import ModelProvider, ModelRequest, ModelStreamEvent
from cayu.sessions import SessionStore

SERIAL, PARALLEL = "one after the other", "all at once"
"""The two things to ask."""
SENSORS = ("freezer", "cold room", "incubator")
SECONDS = 0.05
"""How long one reading takes."""


@tool(version="1", effect=ToolEffect.NONE, parallel_safe=False)
async def read_by_hand(sensor: str) -> str:
    """Walk to a sensor and read it; there is one person, who does one thing after the other."""
    await asyncio.sleep(SECONDS)
    return f"The {sensor} is fine."


@tool(version="1", effect=ToolEffect.NONE)
async def read_remotely(sensor: str) -> str:
    """Ask a sensor over the network, beside others."""
    await asyncio.sleep(SECONDS)
    return f"The {sensor} is fine."


class Caretaker(ModelProvider):
    """A model that reads all sensors once, in the way that it is asked to, and says so."""

    name = "caretaker"

    @property
    def execution_profile_identity(self) -> ExecutionProfileBehaviorIdentity:
        """Declare the behaviour, so that another process may go on with a session."""
        return ExecutionProfileBehaviorIdentity(
            name="cayu.examples.sensors.caretaker", behavior_version="1", implementation_version="1"
        )

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelStreamEvent]:
        """Ask for the readings, and answer once they are there."""
        last = request.messages[-1]
        if last.role == "tool":
            yield ModelStreamEvent.text_delta("All sensors are fine.")
        else:
            name = read_by_hand.spec.name if SERIAL in last.plain_text else read_remotely.spec.name
            for sensor in SENSORS:
                yield ModelStreamEvent.tool_call(name, {"sensor": sensor}, id=sensor)
        yield ModelStreamEvent.completed()


def build_app(*, session_store: SessionStore | None = None) -> CayuApp:
    """Build the application on a store, or in memory."""
    app = CayuApp(session_store=session_store)
    app.register_provider(Caretaker())
    app.register_agent(AgentSpec(name="caretaker", model="caretaker"), tools=[read_by_hand, read_remotely])
    return app


async def main() -> None:
    """Run both ways and print each round's phases, in milliseconds."""
    async with build_app(session_store=SQLiteSessionStore("sensors.db")) as app:
        for way in (SERIAL, PARALLEL):
            request = RunRequest(agent_name="caretaker", messages=(Message.text("user", f"Read them {way}."),))
            outcome = await run_to_completion(app, request)
            [record] = await app.inspect_recent_tool_round_timing(outcome.session_id)
            print(f"{way}: {1000 * record.duration_seconds:.1f} ms")
            for phase in record.phases:
                print(f"  {phase.name:<24}{1000 * phase.duration_seconds:>9.2f}{phase.store_transaction_count:>4}")


if __name__ == "__main__":
    asyncio.run(main())
