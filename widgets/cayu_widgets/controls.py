"""The buttons and fields of a prompt: what a human can say, turned into a `Choice`.

Which controls there are follows from the kind of the request and its deadline. Deny comes first in tab order; edited
arguments are parsed here, so that text that is no JSON object is never sent.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import ipywidgets as widgets

from cayu.canonical import dumps, normalise
from cayu.errors import InvalidInput
from cayu.notebook.html import dumps_pretty
from cayu.sessions.records import PendingAction
from cayu_widgets.live import button, row
from cayu_widgets.standing import Choice

Act = Callable[[], None]
EDITOR_ROWS = (4, 16)
"""The fewest and the most lines of the editor."""


class Controls:
    """The controls of one request."""

    def __init__(
        self,
        action: PendingAction,
        choose: Callable[[Choice], None],
        tell: Callable[[str], None],
        on: Callable[[widgets.Button, Act], None],
    ) -> None:
        """`choose` takes the decision, `tell` shows a problem, `on` connects a button."""
        self._action = action
        self._choose = choose
        self._tell = tell
        self._on = on
        self.editing = False
        """True while the arguments are being edited."""
        self.overdue = False
        """True once the store's clock has passed the deadline; then every decision records that it expired."""
        self._deny = self._button("Deny", "Do not run this call; the agent is told so", "times", self._denied)
        self._edit = self._button("Edit…", "Change the arguments before the call runs", "pencil", self._open_editor)
        self._approve = self._button("Approve", "Run this call with exactly these arguments", "check", self._approved)
        self._cancel = self._button("Cancel", "Leave the arguments as they are", "undo", self._close_editor)
        self._send = self._button("Approve edited", "Run this call with the arguments below", "check", self._edited)
        self._over = self._button(
            "Go on without it", "The deadline has passed: the session goes on, the call does not run", "", self._denied
        )
        text = dumps_pretty(action.arguments or {})
        lines = min(max(text.count("\n") + 2, EDITOR_ROWS[0]), EDITOR_ROWS[1])
        self._editor = widgets.Textarea(value=text, rows=lines, tooltip="The arguments as JSON")
        self._editor.layout = widgets.Layout(width="100%", height="auto", margin="6px 0")
        self._options = [self._option(text) for text in action.options]
        self._answer = widgets.Text(placeholder="Your answer", tooltip="Your answer in your own words")
        self._answer.layout = widgets.Layout(width="min(420px, 100%)", margin="2px 6px 2px 0")
        self._reply = self._button("Answer", "Send this answer to the agent", "check", self._answered)
        self._box = widgets.VBox()
        self._box.add_class("cayu-live")

    def shown(self, *, off: bool) -> list[widgets.Widget]:
        """Return the controls to show; `off` while a decision is on its way."""
        for control in (self._deny, self._edit, self._approve, self._cancel, self._send, self._over, self._reply):
            control.disabled = off
        for control in (*self._options, self._editor, self._answer):
            control.disabled = off
        self._box.children = tuple(self._rows())
        return [self._box]

    def _rows(self) -> list[widgets.Widget]:
        if self.overdue:
            return [row(self._over)]
        if self._action.kind == "user_input":
            options = [row(*self._options)] if self._options else []
            return [*options, row(self._answer, self._reply)] if self._action.allow_other else options
        if self.editing:
            return [self._editor, row(self._deny, self._cancel, self._send)]
        return [row(self._deny, self._edit, self._approve)]

    def _button(self, label: str, tooltip: str, icon: str, act: Act) -> widgets.Button:
        made = button(label, tooltip, icon)
        self._on(made, act)
        return made

    def _option(self, text: str) -> widgets.Button:
        return self._button(text or "(empty)", f"Answer: {text}", "", lambda: self._choose(Choice("answer", text=text)))

    def _denied(self) -> None:
        if self._action.kind == "user_input":
            self._choose(Choice("answer", text=""))
        else:
            self._choose(Choice("deny"))

    def _approved(self) -> None:
        self._choose(Choice("approve"))

    def _open_editor(self) -> None:
        self.editing = True
        self.shown(off=False)

    def _close_editor(self) -> None:
        self.editing = False
        self._tell("")
        self.shown(off=False)

    def _edited(self) -> None:
        try:
            arguments = parsed(self._editor.value)
        except InvalidInput as error:
            self._tell(str(error))
            return
        unchanged = dumps(arguments) == dumps(self._action.arguments)
        self._choose(Choice("approve", arguments=None if unchanged else arguments))

    def _answered(self) -> None:
        if self._answer.value:
            self._choose(Choice("answer", text=self._answer.value))
        else:
            self._tell("Type an answer first; nothing was sent.")


def parsed(text: str) -> dict[str, Any]:
    """Return edited arguments. Raises `InvalidInput` for text that is no JSON object, with the place.

    Numbers outside the JSON domain raise its `NotJson`.
    """
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        raise InvalidInput(f"This is not JSON, and nothing was sent: {error}.") from error
    if not isinstance(value, dict):
        raise InvalidInput('Arguments are a JSON object such as {"name": "value"}; nothing was sent.')
    normal: dict[str, Any] = normalise(value)
    return normal


def _no_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON number")
