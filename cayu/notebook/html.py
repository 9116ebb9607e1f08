"""Static HTML of sessions and pending actions: readable in a saved notebook, themed by JupyterLab's own variables.

Everything that a model, a tool or a user wrote goes through `esc`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from html import escape

from cayu.canonical import JSON, dumps
from cayu.clock import as_datetime
from cayu.messages import Message
from cayu.sessions.records import PendingAction
from cayu.sessions.view import CallView, RecallView, RoundView, SessionView

LONG_TEXT = 1200
"""Characters of one text that are shown before it is folded away."""

STYLE = """<style>
.cayu{font-family:var(--jp-ui-font-family,system-ui,sans-serif);font-size:13px;line-height:1.5;
 color:var(--jp-ui-font-color1,#1f2328);max-width:960px}
.cayu-card{border:1px solid var(--jp-border-color2,#d0d7de);border-radius:6px;padding:10px 14px;margin:4px 0;
 background:var(--jp-layout-color1,#fff)}
.cayu h4{margin:0 0 6px;font-size:14px;font-weight:600}
.cayu-muted{color:var(--jp-ui-font-color2,#59636e);font-size:12px}
.cayu .cayu-badge{display:inline-block;line-height:1.5;border:1px solid currentColor;border-radius:10px;
 padding:0 8px;margin-left:8px;font-size:12px;font-weight:500}
.cayu-completed,.cayu-approved{color:var(--jp-success-color1,#1a7f37)}
.cayu-failed,.cayu-denied{color:var(--jp-error-color1,#b3261e)}
.cayu-interrupted,.cayu-pending,.cayu-interrupting{color:var(--jp-warn-color1,#9a6700)}
.cayu-running{color:var(--jp-info-color1,#0969da)}
.cayu .cayu-turn{margin-top:4px;display:grid;grid-template-columns:84px 1fr;gap:2px 12px;padding:5px 0;
 border-top:1px solid var(--jp-border-color2,#d0d7de)}
.cayu-role{color:var(--jp-ui-font-color2,#59636e);text-align:right}
.cayu-text{white-space:pre-wrap;overflow-wrap:anywhere;min-width:0}
.cayu code,.cayu pre{font-family:var(--jp-code-font-family,ui-monospace,monospace);font-size:12px;
 background:var(--jp-layout-color2,#f6f8fa);border-radius:4px;color:inherit}
.cayu.cayu pre{padding:6px 8px;margin:2px 0;white-space:pre-wrap;overflow-wrap:anywhere;max-height:320px;overflow:auto}
.cayu code{padding:0 4px}
.cayu.cayu table{border-collapse:collapse;font-size:12px;margin:4px 0;border:0}
.cayu.cayu.cayu tr,.cayu.cayu.cayu tr:hover{background:none}
.cayu.cayu.cayu td,.cayu.cayu.cayu th{text-align:left;
 padding:2px 10px 2px 0;border:0;background:none;vertical-align:top}
</style>"""


def esc(text: object) -> str:
    """Return text that is safe inside HTML, whoever wrote it."""
    return escape(str(text), quote=True)


def card(title: str, badge: str, body: Iterable[str], kind: str | None = None) -> str:
    """Return a card; `title` and `badge` are plain text, the lines of `body` HTML; `kind` colours the badge."""
    kind = esc(kind or badge.replace(",", " ").split(" ")[0].lower())
    mark = f'<span class="cayu-badge cayu-{kind}">{esc(badge)}</span>' if badge else ""
    return f'{STYLE}<div class="cayu"><div class="cayu-card"><h4>{esc(title)}{mark}</h4>{"".join(body)}</div></div>'


def table(head: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """Return a table of plain values."""
    titles = "".join(f"<th>{esc(name)}</th>" for name in head)
    lines = ("".join(f"<td>{esc('' if value is None else value)}</td>" for value in row) for row in rows)
    return f"<table><tr>{titles}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def session_html(view: SessionView) -> str:
    """Return a session as a card: where it stands, the conversation, what waits."""
    row = view.row
    counted = ((view.model_steps, "model step"), (view.tool_calls, "tool call"), (len(view.rounds), "round"))
    numbers = " · ".join(f"{number} {noun}{'' if number == 1 else 's'}" for number, noun in counted)
    facts = f"{row.agent_name} · {row.model} · {numbers} · since {clock_time(view.started_at)}"
    lines = [f'<div class="cayu-muted"><code>{esc(row.id)}</code> {esc(facts)}</div>']
    rounds = iter(view.rounds)
    recalled = {recall.position: recall for recall in view.recalls if recall.text}
    for position, message in enumerate(view.transcript):
        lines += [_recalled(recalled[position])] if position in recalled else []
        lines += _turn(message, rounds if message.tool_calls else None)
    if view.open_round is not None:
        lines += [_open_call(call) for call in view.open_round.calls]
    if view.error is not None:
        lines.append(
            _row("error", f"<b>{esc(view.error.get('code', 'failed'))}</b> {esc(view.error.get('detail', ''))}")
        )
    return card(row.title or f"Session of {row.agent_name}", status_text(view), lines)


def status_text(view: SessionView) -> str:
    """Return a session's state in words, with what it waits for."""
    waiting = len(view.awaiting)
    if view.error is not None:
        return f"failed, {view.error.get('detail') or view.error.get('code')}".replace("_", " ")
    if waiting:
        return f"interrupted, {waiting} decision{'s' if waiting > 1 else ''} pending"
    reason = (view.interruption or {}).get("reason") if view.status == "interrupted" else None
    return f"{view.status}, {str(reason).replace('_', ' ')}" if reason else str(view.status)


def _turn(message: Message, rounds: Iterable[RoundView] | None) -> list[str]:
    lines = []
    for part in message.content:
        match part.type:
            case "text":
                lines.append(_row(message.role, folded(part.text)))
            case "thinking":
                lines.append(_row("thinking", f"<i>{folded(part.text)}</i>"))
            case "tool_call":
                lines.append(_row("calls", f"<b>{esc(part.name)}</b> {folded(json_text(part.arguments))}"))
            case "tool_result":
                mark = "<b>error</b> " if part.is_error else ""
                lines.append(_row("gets", f"{mark}{folded(part.content)}"))
    return lines


def _recalled(recall: RecallView) -> str:
    """Return what stood before a message of memory, by title; the text itself is folded away."""
    shown = [item for item in recall.items if item["disposition"] != "left_out"]
    names = ", ".join(str(item["title"] or item["id"]) for item in shown)
    count = f"{len(shown)} note{'' if len(shown) == 1 else 's'}"
    return _row("recalls", f"<details><summary>{count}: {esc(names)}</summary><pre>{esc(recall.text)}</pre></details>")


def _open_call(call: CallView) -> str:
    return _row("waits", f"<b>{esc(call.name)}</b> · {esc(call.state.replace('_', ' '))}")


def _row(role: str, content: str) -> str:
    return (
        f'<div class="cayu-turn"><div class="cayu-role">{esc(role)}</div><div class="cayu-text">{content}</div></div>'
    )


def folded(text: str) -> str:
    """Return text as HTML; what is long is folded away, and nothing is lost."""
    if len(text) <= LONG_TEXT:
        return esc(text)
    head = esc(text[: LONG_TEXT // 3])
    return f"{head}… <details><summary>all {len(text)} characters</summary><pre>{esc(text)}</pre></details>"


def json_text(value: JSON) -> str:
    """Return a value as compact JSON text."""
    return dumps(value).decode()


def action_html(action: PendingAction, state: str = "pending", note: str = "") -> str:
    """Return a pending action as a card, with everything that a decision needs."""
    return card(
        action.title, state, [*action_lines(action), f'<div class="cayu-muted">{esc(note)}</div>' if note else ""]
    )


def action_lines(action: PendingAction) -> list[str]:
    """Return what a decider has to see: tool, asker, reason, arguments, effect, deadline, digest."""
    facts = [("Tool", action.tool_name), ("Effect", action.tool_effect), ("Agent", action.agent_name)]
    facts += [("Session", action.session), ("Why", action.detail), ("Asked", moment_text(action.requested_at))]
    facts += [("Until", moment_text(action.expires_at) or "no deadline")]
    rows = "".join(f"<tr><th>{esc(name)}</th><td>{esc(value)}</td></tr>" for name, value in facts if value)
    lines = [f"<table>{rows}</table>"]
    if action.question is not None:
        lines.append(f'<div class="cayu-text"><b>{esc(action.question)}</b></div>')
        offered = [*map(esc, action.options), *(["<i>or another answer</i>"] if action.allow_other else [])]
        lines.append(f'<div class="cayu-muted">Options: {" · ".join(offered)}</div>' if action.options else "")
    if action.arguments is not None:
        lines.append(f"<pre>{esc(dumps_pretty(action.arguments))}</pre>")
    if action.arguments_digest:
        lines.append(
            f'<div class="cayu-muted">arguments sha256 <code>{esc(action.arguments_digest[:16])}…</code></div>'
        )
    return lines


def dumps_pretty(value: JSON) -> str:
    """Return a value as indented JSON text."""
    import json

    return json.dumps(value, indent=2, ensure_ascii=False)


def pending_html(actions: Iterable[PendingAction], lost: Iterable[str] = ()) -> str:
    """Return what waits, as a list, with the sessions that were cut off."""
    cut = [f"<div>Session <code>{esc(name)}</code> was cut off: lab.recover({esc(repr(name))})</div>" for name in lost]
    rows = [
        f"<tr><td><b>{esc(action.title)}</b></td><td>{esc(action.kind.replace('_', ' '))}</td>"
        f"<td>{esc(action.agent_name)}</td><td>{esc(moment_text(action.requested_at))}</td><td><code>{esc(action.id)}</code></td></tr>"
        for action in actions
    ]
    if not rows:
        return card("Nothing waits for a decision", "", cut)
    head = "<tr><th>What</th><th>Kind</th><th>Agent</th><th>Since</th><th>Id</th></tr>"
    count = f"{len(rows)} decision{'s' if len(rows) > 1 else ''} pending"
    return card("Waiting for you", count, [f"<table>{head}{''.join(rows)}</table>", *cut], kind="pending")


def clock_time(microseconds: int) -> str:
    """Return a store's time as people read it."""
    return moment_text(as_datetime(microseconds))


def moment_text(moment: datetime | None) -> str:
    """Return a moment as people read it; a saved page does not age, so it never says how long ago."""
    return "" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S UTC")
