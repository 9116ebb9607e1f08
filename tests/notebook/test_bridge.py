"""The bridge: one loop in a thread of its own, entered from scripts, loops, threads and callbacks, and left cleanly."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError as FutureCancelledError
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest
from notebook.conftest import ask, lab_threads, until

from cayu.errors import LabClosed, OnLabLoop, StoreError
from cayu.notebook import Bridge
from cayu.testing import run_child

if TYPE_CHECKING:
    from notebook.conftest import Workshop

CHILDREN = str(Path(__file__).with_name("children.py"))


@pytest.fixture
def bridge() -> Iterator[Bridge]:
    made = Bridge()
    yield made
    made.close()


async def here() -> str:
    await asyncio.sleep(0)
    return threading.current_thread().name


async def broken() -> NoReturn:
    raise LookupError("inside")


class Endless:
    """Work that ends only by being cancelled, and says that it was."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.cancelled = threading.Event()

    async def work(self) -> None:
        self.begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.02)  # cleaning up takes turns of the loop
            self.cancelled.set()
            raise


def test_a_script_blocks_until_the_answer(bridge: Bridge) -> None:
    assert bridge.call(here()) == "cayu-lab"
    with pytest.raises(LookupError, match="inside"):
        bridge.call(broken())
    assert threading.current_thread().name != "cayu-lab"


async def test_a_running_loop_blocks_as_well_and_goes_on(bridge: Bridge) -> None:
    before = asyncio.get_running_loop()
    assert bridge.call(here()) == "cayu-lab"
    assert asyncio.get_running_loop() is before
    await asyncio.sleep(0)


def test_worker_threads_block_each_for_itself(bridge: Bridge) -> None:
    both = threading.Barrier(2, timeout=5)

    async def meet() -> str:
        await asyncio.to_thread(both.wait)  # neither call could end if they ran one after the other
        return threading.current_thread().name

    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(lambda: bridge.call(meet())) for _ in range(2)]
        assert [each.result(5) for each in found] == ["cayu-lab", "cayu-lab"]


def test_the_loop_refuses_to_wait_for_itself(bridge: Bridge) -> None:
    async def blocking() -> None:
        bridge.call(here())

    with pytest.raises(OnLabLoop, match="await its"):
        bridge.call(blocking())

    async def closing() -> None:
        bridge.close()

    with pytest.raises(OnLabLoop):
        bridge.call(closing())
    assert bridge.call(here()) == "cayu-lab"


def test_a_callback_of_the_loop_may_submit(bridge: Bridge) -> None:
    async def submitting() -> str:
        return await asyncio.wrap_future(bridge.submit(here()))

    assert bridge.call(submitting()) == "cayu-lab"


def test_a_verb_in_a_callback_is_refused_and_the_run_goes_on(workshop: Workshop) -> None:
    lab = workshop.open()
    heard: list[str] = []

    def on_event(event: object) -> None:
        heard.append(threading.current_thread().name)
        lab.pending()

    assert lab.run("a", "go", on_event=on_event).status == "completed"
    assert set(heard) == {"cayu-lab"}
    kept = lab.errors_df()
    assert set(kept["type"]) == {"OnLabLoop"}
    assert len(kept) == len(heard)


def test_closing_the_lab_in_a_callback_is_refused_at_once(workshop: Workshop) -> None:
    lab = workshop.open()
    took: list[float] = []

    def on_event(event: object) -> None:
        begun = time.monotonic()
        try:
            lab.close()
        finally:
            took.append(time.monotonic() - begun)

    def run() -> str:
        return lab.run("a", "go", on_event=lambda event: None if took else on_event(event)).status

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(run).result(2) == "completed"
    assert max(took) < 1, "it waited for itself"
    assert lab.errors_df()["type"].tolist() == ["OnLabLoop"]
    assert lab.run("a", "go").status == "completed"


def test_a_verb_in_a_synchronous_tool_is_an_ordinary_call(workshop: Workshop) -> None:
    lab = workshop.open()
    workshop.scripts["go"] = [ask("look", word="x"), "done"]
    seen: list[tuple[str, str]] = []
    workshop.on_look = lambda: seen.append((lab.session("s").status, lab.run("a", "another").status))
    assert lab.run("a", "go", session_id="s").status == "completed"
    assert seen == [("running", "completed")]


async def test_acall_serves_other_loops(bridge: Bridge) -> None:
    assert await bridge.acall(here()) == "cayu-lab"
    with pytest.raises(LookupError, match="inside"):
        await bridge.acall(broken())
    assert await asyncio.gather(*(bridge.acall(here()) for _ in range(5))) == ["cayu-lab"] * 5


def test_acall_outlives_the_callers_loop(bridge: Bridge) -> None:
    assert [asyncio.run(bridge.acall(here())) for _ in range(2)] == ["cayu-lab"] * 2


async def test_a_cancelled_caller_cancels_its_work(bridge: Bridge) -> None:
    endless = Endless()
    caller = asyncio.ensure_future(bridge.acall(endless.work()))
    await asyncio.to_thread(endless.begun.wait, 5)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert await asyncio.to_thread(endless.cancelled.wait, 5)
    assert await bridge.acall(here()) == "cayu-lab"


async def test_a_cancelled_run_leaves_its_session_interrupted(workshop: Workshop) -> None:
    lab = workshop.open()
    workshop.scripts["wait"] = [ask("hold"), "done"]
    caller = asyncio.ensure_future(lab.arun("a", "wait", session_id="s"))
    await asyncio.to_thread(workshop.entered.wait, 5)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await asyncio.to_thread(until, lambda: not lab.app.services.drives, "the run to end")
    assert lab.session("s").status == "interrupted"


async def test_a_timeout_is_the_callers_and_nobody_elses(bridge: Bridge) -> None:
    endless, other = Endless(), Endless()
    beside = bridge.submit(other.work())
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await bridge.acall(endless.work())
    assert await asyncio.to_thread(endless.cancelled.wait, 5)
    assert not other.cancelled.is_set()
    beside.cancel()


def test_closing_cancels_what_is_at_work_and_lets_it_end() -> None:
    before = lab_threads()
    bridge, endless = Bridge(), Endless()
    future = bridge.submit(endless.work())
    assert endless.begun.wait(5)
    bridge.close()
    assert endless.cancelled.is_set()
    with pytest.raises(FutureCancelledError):
        future.result(0)
    assert lab_threads() == before


def test_closing_the_lab_frees_a_thread_that_waits(workshop: Workshop) -> None:
    lab = workshop.open()
    workshop.scripts["wait"] = [ask("hold"), "done"]
    ended: list[object] = []

    def blocked() -> None:
        try:
            ended.append(lab.run("a", "wait", session_id="s").status)
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=blocked)
    thread.start()
    assert workshop.entered.wait(5)
    lab.close()
    thread.join(5)
    assert not thread.is_alive()
    assert len(ended) == 1
    assert ended == ["interrupted"] or isinstance(ended[0], LabClosed | StoreError | FutureCancelledError)
    assert workshop.open().session("s").status == "interrupted"


async def test_a_closed_bridge_refuses_every_door() -> None:
    bridge = Bridge()
    bridge.close()
    bridge.close()
    with pytest.raises(LabClosed):
        bridge.call(here())
    with pytest.raises(LabClosed):
        bridge.submit(here())
    with pytest.raises(LabClosed):
        await bridge.acall(here())


@pytest.mark.slow
def test_ctrl_c_interrupts_the_session_and_the_lab_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, CHILDREN, "interrupted_by_hand", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "holding\n"
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=20)
        finally:
            child.kill()
    assert child.returncode == 0, err
    told = json.loads(out.splitlines()[-1])
    assert told == {
        "interrupted": True,
        "status": "interrupted",
        "calls": ["failed"],
        "at_work": [],
        "next": "done",
    }


@pytest.mark.slow
def test_asyncio_stays_as_it_was(tmp_path: Path) -> None:
    assert run_child(f"{CHILDREN}:changed_asyncio", [str(tmp_path)]).result == []
