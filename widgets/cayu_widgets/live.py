"""What the live widgets share: work on the lab's loop, one place for errors, and word of each other's decisions.

A callback only submits a coroutine to the bridge and returns, on whatever thread it was called. The coroutine runs on
the lab's loop and sets traits from there, which reach the page. Whatever is raised is shown in the widget's card and
kept in `lab.problems`. A widget that has decided announces it, and the other widgets of the same lab look again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import ipywidgets as widgets

from cayu.errors import LabClosed
from cayu.notebook import Lab
from cayu_widgets.markup import problem_html

Work = Callable[[], Coroutine[Any, Any, None]]
"""Makes the coroutine only when it starts, so that one cancelled before then leaves nothing unawaited."""
_listening: WeakKeyDictionary[Lab, WeakSet[Live]] = WeakKeyDictionary()
_lock = threading.Lock()


class Live(widgets.VBox):  # type: ignore[misc]  # ipywidgets carries no types
    """A box that works on a lab's loop, shows its own errors, and hears of decisions."""

    ended = True
    """True when nothing works for the widget: before it was made, and after it was closed."""

    def __init__(self, lab: Lab, session_id: str | None = None) -> None:
        """Bind the box to a lab; `session_id` says which session its errors belong to."""
        super().__init__()
        self.lab = lab
        self.ended = False
        self.session_id = session_id
        self._problem = widgets.HTML()
        self._works: set[Future[None]] = set()
        self.add_class("cayu-live")
        with _lock:
            _listening.setdefault(lab, WeakSet()).add(self)

    def begin(self, work: Work) -> None:
        """Start work on the lab's loop and return at once; on a closed lab the work is refused and `refused` called."""
        if self.ended:
            return
        try:
            future = self.lab.submit(self._guarded(work))
        except LabClosed as error:
            self.refused(error)
            return
        with _lock:
            self._works.add(future)
        future.add_done_callback(self._forget)

    def on(self, button: widgets.Button, act: Callable[[], None]) -> None:
        """Call `act` at each click."""
        button.on_click(lambda _: self._called(act))

    def fail(self, error: BaseException) -> None:
        """Show an error in the card and keep it for `lab.errors_df()`."""
        self.lab.problems.keep(type(self).__name__, error, self.session_id)
        self.tell(f"{type(error).__name__}: {error}")

    def tell(self, text: str = "") -> None:
        """Show a problem in the card, or take the last one away."""
        self._problem.value = problem_html(text)
        self._problem.layout.display = None if text else "none"

    def refused(self, error: LabClosed) -> None:
        """Say that the lab is closed; nothing was begun."""
        self.fail(error)

    def static_html(self) -> str:
        """Return what is shown now as plain HTML, for pages without a kernel."""
        raise NotImplementedError

    def heard(self, session_id: str) -> None:
        """Look again, if it concerns this widget: a decision of that session was made."""
        raise NotImplementedError

    def close(self) -> None:
        """End what works for the widget and take it off the page."""
        if not self.ended:
            self.ended = True
            with _lock:
                _listening.get(self.lab, WeakSet()).discard(self)
                works = list(self._works)
            for future in works:
                future.cancel()
            for child in self.children:
                close_all(child)
        super().close()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        shown: dict[str, Any] = super()._repr_mimebundle_(**kwargs)
        return shown | {"text/html": self.static_html()}

    def _called(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - the one place where a callback's errors end
            self.fail(error)

    async def _guarded(self, work: Work) -> None:
        try:
            await work()
        except Exception as error:  # noqa: BLE001 - the one place where background errors end
            self.fail(error)

    def _forget(self, future: Future[None]) -> None:
        with _lock:
            self._works.discard(future)


def announce(lab: Lab, session_id: str) -> None:
    """Tell every widget of a lab that a decision of a session was made."""
    with _lock:
        found = list(_listening.get(lab, ()))
    for widget in found:
        widget.heard(session_id)


def close_all(widget: widgets.Widget) -> None:
    """Close a widget and everything inside it, so that the kernel can forget them."""
    if not isinstance(widget, Live):
        for child in getattr(widget, "children", ()):
            close_all(child)
    widget.close()


def button(label: str, tooltip: str, icon: str = "") -> widgets.Button:
    """Return a button with words and a tooltip; an icon only repeats the words."""
    return widgets.Button(description=label, tooltip=tooltip, icon=icon, layout=widgets.Layout(width="auto"))


def head_row(*children: widgets.Widget) -> widgets.HBox:
    """Return a heading with the control that belongs to it."""
    box = row(*children)
    box.add_class("cayu-head")
    return box


def row(*children: widgets.Widget) -> widgets.HBox:
    """Return controls side by side, in tab order, wrapping where the page is narrow."""
    box = widgets.HBox(children)
    box.add_class("cayu-row")
    return box
