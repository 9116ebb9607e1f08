"""What the children of the tests of limits and budgets run: an agent that spends under limits and a shared budget."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from cayu import (
    AgentSpec,
    CayuApp,
    ExecutionProfileBehaviorIdentity,
    Message,
    RunLimits,
    RunRequest,
    SQLiteSessionStore,
    Tool,
    ToolContext,
    ToolEffect,
    ToolResult,
    ToolSpec,
    run_to_completion,
)
from cayu.approvals import ToolApprovalDecision, ToolApprovalRequest
from cayu.budgets import Amount, BudgetLedger, BudgetLimit, TokenPrices
from cayu.budgets.ledger import amount_of
from cayu.errors import BudgetExceeded
from cayu.providers import ModelRequest, ModelStreamEvent, ScriptedModelProvider
from cayu.storage import SQLiteBudgetLedger
from cayu.tools import ByNameToolPolicy, ToolPolicyDecision

SESSION = "spender"
BUDGET = "shared"
PRICES = TokenPrices(input_per_million=Decimal("0.1"), output_per_million=Decimal("0.7"))
LIMIT = BudgetLimit(
    budget_id=BUDGET, max_tokens=10_000, max_cost=Decimal("0.01"), prices=PRICES, reserve_output_tokens=64
)
LIMITS = RunLimits(max_total_tokens=5_000, max_tool_calls=9)
USAGES = ((101, 23), (157, 31), (211, 13))
"""Input and output tokens of each step."""
MEETING_SECONDS = 30.0


def metered(usage: tuple[int, int], *events: ModelStreamEvent) -> list[ModelStreamEvent]:
    """One answer with what it took."""
    return [*events, ModelStreamEvent.completed(usage={"input_tokens": usage[0], "output_tokens": usage[1]})]


SCRIPT = (
    metered(
        USAGES[0], ModelStreamEvent.tool_call("look", {}, id="c1"), ModelStreamEvent.tool_call("look", {}, id="c2")
    ),
    metered(USAGES[1], ModelStreamEvent.tool_call("pay", {}, id="c1")),
    metered(USAGES[2], ModelStreamEvent.text_delta("done")),
)


class Spending(ScriptedModelProvider):
    """Plays the script; armed, it kills its process at the given step, in the middle of the answer."""

    def __init__(self, dies_at_step: int | None = None) -> None:
        super().__init__(SCRIPT)
        self._dies_at_step = dies_at_step

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelStreamEvent]:
        """Answer, or die."""
        step = 1 + sum(message.role == "assistant" for message in request.messages)
        if step == self._dies_at_step:
            os.kill(os.getpid(), signal.SIGKILL)
        async for event in super().stream(request):
            yield event


class Noted(Tool):
    """Writes a line each time it acts."""

    def __init__(self, folder: Path, name: str, effect: ToolEffect) -> None:
        self._folder = folder
        self.spec = ToolSpec(
            name=name,
            description=name,
            effect=effect,
            parallel_safe=effect is ToolEffect.NONE,
            execution_profile_identity=ExecutionProfileBehaviorIdentity(
                name=name, behavior_version="1", implementation_version="1"
            ),
        )

    async def run(self, ctx: ToolContext, args: dict[str, Any]) -> ToolResult:
        """Act."""
        with open(self._folder / "acts.txt", "a", encoding="ascii") as acts:
            acts.write(f"{self.spec.name}\n")
        return ToolResult(content="acted")


def build(folder: Path, dies_at_step: int | None = None) -> CayuApp:
    """Return the application; its budgets stand beside its sessions."""
    app = CayuApp(session_store=SQLiteSessionStore(folder / "spending.db"))
    app.register_provider(Spending(dies_at_step))
    tools = [Noted(folder, "look", ToolEffect.NONE), Noted(folder, "pay", ToolEffect.EXTERNAL)]
    policy = ByNameToolPolicy({"pay": ToolPolicyDecision.REQUIRE_APPROVAL})
    app.register_agent(AgentSpec(name="spender", model="m"), tools=tools, tool_policy=policy)
    return app


async def run(folder: str, session_id: str = SESSION, budgets: bool = True, dies_at_step: int | None = None) -> str:
    """Run a session to its approval."""
    async with build(Path(folder), dies_at_step) as app:
        request = RunRequest(
            agent_name="spender",
            session_id=session_id,
            messages=(Message.text("user", "spend"),),
            limits=LIMITS,
            budget_limits=(LIMIT,) if budgets else (),
        )
        return str((await run_to_completion(app, request)).status)


async def approve(folder: str, session_id: str = SESSION, dies_at_step: int | None = None) -> str:
    """Approve what waits."""
    async with build(Path(folder), dies_at_step) as app:
        [action] = (await app.list_pending_actions()).actions
        request = ToolApprovalRequest(
            session_id=session_id, approval_id=action.id, decision=ToolApprovalDecision.APPROVE
        )
        return str((await run_to_completion(app, request)).status)


async def reserve_then_die(folder: str) -> None:
    """Make a reservation durable in the ledger, and die before the log can say so."""

    async with build(Path(folder)) as app:
        ledger = app.services.ledger
        reserve = ledger.reserve

        async def reserved(*given: Any) -> None:
            await reserve(*given)
            os.kill(os.getpid(), signal.SIGKILL)

        ledger.reserve = reserved  # type: ignore[method-assign]
        request = RunRequest(
            agent_name="spender",
            session_id=SESSION,
            messages=(Message.text("user", "spend"),),
            budget_limits=(LIMIT,),
        )
        await run_to_completion(app, request)


class Watching(ScriptedModelProvider):
    """Two steps a session, each of which looks at the shared budget while it is asked."""

    def __init__(self) -> None:
        step = metered((30, 10), ModelStreamEvent.tool_call("look", {}, id="c1"))
        super().__init__([step, metered((35, 15), ModelStreamEvent.text_delta("done"))])
        self.most = 0
        """The most that was spent and held at any time."""
        self.ledger: BudgetLedger

    async def count_input_tokens(self, request: ModelRequest) -> int:
        """Be exact, so that no step takes more than it reserved."""
        return 40

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelStreamEvent]:
        """Look, and answer."""
        account = await self.ledger.account(BUDGET)
        self.most = max(self.most, account.spent_tokens + account.reserved_tokens)
        async for event in super().stream(request):
            yield event


async def spend_together(folder: str, who: str, sessions: int, cap: int, parties: int) -> list[int]:
    """Run many sessions at once under one budget; return how many completed and were stopped, and the most seen."""
    home = Path(folder)
    provider = Watching()
    app = CayuApp(session_store=SQLiteSessionStore(home / "together.db"))
    provider.ledger = app.services.ledger
    app.register_provider(provider)
    app.register_agent(AgentSpec(name="spender", model="m"), tools=[Noted(home, "look", ToolEffect.NONE)])
    limit = BudgetLimit(budget_id=BUDGET, max_tokens=cap, reserve_output_tokens=20)
    requests = [
        RunRequest(
            agent_name="spender",
            session_id=f"{who}-{number}",
            messages=(Message.text("user", "spend"),),
            budget_limits=(limit,),
        )
        for number in range(sessions)
    ]
    async with app:
        await app.services.ledger.account(BUDGET)
        meet(home, parties)
        outcomes = await asyncio.gather(*(run_to_completion(app, request) for request in requests))
    ends = [outcome.status if outcome.interruption is None else outcome.interruption["reason"] for outcome in outcomes]
    return [ends.count("completed"), ends.count("limit_reached"), provider.most]


async def contend(folder: str, who: str, rounds: int, cap: int, wanted: int, parties: int) -> list[int]:
    """Reserve, look and settle again and again while other processes do; return what was got and the most ever seen."""
    ledger = SQLiteBudgetLedger(Path(folder) / "ledger.db")
    limit = BudgetLimit(budget_id=BUDGET, max_tokens=cap)
    spent = most = 0

    async def one(number: int) -> None:
        nonlocal spent, most
        name = f"{who}.{number}"
        try:
            await ledger.reserve(BUDGET, name, amount_of(limit, wanted, 0), limit)
        except BudgetExceeded:
            return
        account = await ledger.account(BUDGET)
        most = max(most, account.spent_tokens + account.reserved_tokens)
        if number % 3 == 0:
            await ledger.release(BUDGET, name)
        else:
            await ledger.reconcile(BUDGET, name, Amount(wanted - number % 2))
            spent += wanted - number % 2

    await one(rounds + 1)  # before the others are let in, so that everybody has a share
    meet(Path(folder), parties)
    for first in range(0, rounds, 5):
        await asyncio.gather(*(one(number) for number in range(first, first + 5)))
    await ledger.aclose()
    return [spent, most]


def meet(folder: Path, parties: int) -> None:
    """Wait until all parties are here."""
    (folder / f"here.{os.getpid()}").touch()
    deadline = time.monotonic() + MEETING_SECONDS
    while len(list(folder.glob("here.*"))) < parties:
        if time.monotonic() > deadline:
            raise TimeoutError("not everybody came")
        time.sleep(0.001)


def steps_of(usages: Sequence[tuple[int, int]] = USAGES) -> Amount:
    """What the steps come to under the prices, computed by hand."""
    cost = sum((Decimal("0.1") * i + Decimal("0.7") * o for i, o in usages), Decimal(0)) / 1_000_000
    return Amount(sum(i + o for i, o in usages), cost)
