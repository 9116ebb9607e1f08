"""The words and HTML of the live widgets, as pure functions of what they show.

The widgets draw their own frame around HTML and buttons, so the pieces here have none; whatever a model, a tool or a
user wrote passes through `esc`. Colours come from the theme's variables only, and no meaning rests on a colour alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from cayu.clock import as_datetime
from cayu.notebook.html import STYLE as STATIC_STYLE
from cayu.notebook.html import clock_time, esc, json_text
from cayu.sessions.records import PendingAction
from cayu.sessions.streams import StreamHead
from cayu.sessions.view import CallView, SessionView

NARROW_SPACE = "\u202f"
"""The narrow no-break space between groups of three digits."""
WIDE_SPACE = "\u00a0"
"""A space that a list row does not swallow."""
OPEN_MARK = ">"
"""Stands before the row of the session that is open."""
MOST_CALLS = 200
"""Calls that the table of rounds shows; `calls_df` has them all."""
SHORT_ARGUMENTS = 160
"""Characters of a call's arguments in the table of rounds."""

STYLE = (
    STATIC_STYLE
    + """<style>
.cayu-live{overflow:visible;max-width:960px;box-sizing:border-box}
.cayu-frame{border:1px solid var(--jp-border-color2,#d0d7de);border-radius:6px;padding:8px 14px 10px;margin:4px 0;
 background:var(--jp-layout-color1,#fff)}
.cayu-live .widget-html,.cayu-live .jupyter-widget-html{width:auto;margin:0;overflow:visible}
.cayu-live .widget-html-content,.cayu-live .jupyter-widget-html-content{line-height:1.5}
.cayu-live .cayu h4{color:var(--jp-ui-font-color1,#1f2328);overflow-wrap:anywhere}
.cayu-row{overflow:visible;flex-wrap:wrap;align-items:center}
.cayu-row button{margin:2px 6px 2px 0;padding:0 12px;white-space:normal;height:auto;min-height:28px;line-height:20px;
 text-align:left;border:1px solid var(--jp-border-color1,#afb8c1)}
.cayu-row button:focus-visible{outline:2px solid var(--jp-brand-color1,#0969da);outline-offset:1px}
.cayu-place{margin-top:14px}
.cayu-rows{max-height:316px;overflow-x:hidden;overflow-y:auto;border:1px solid var(--jp-border-color1,#afb8c1);
 border-radius:3px;background:var(--jp-layout-color1,#fff)}
.cayu-rows button{margin:0;padding:0 8px;height:24px;line-height:24px;text-align:left;white-space:pre;overflow:hidden;
 text-overflow:ellipsis;background:transparent;border:0;border-radius:0;flex-shrink:0;
 font-family:var(--jp-code-font-family,ui-monospace,monospace);font-size:12px}
.cayu-rows button:hover{background:var(--jp-layout-color2,#f6f8fa)}
.cayu-rows button:focus-visible{outline:2px solid var(--jp-brand-color1,#0969da);outline-offset:-2px}
.cayu-frame .cayu-row{margin-top:4px}
.cayu-head{align-items:center}
.cayu-head .cayu h4{margin:0}
.cayu-head button{margin-left:12px}
.cayu-asked{margin-top:4px}
.cayu-asked summary{cursor:pointer;color:var(--jp-ui-font-color2,#59636e);font-size:12px}
.cayu-live textarea{font-family:var(--jp-code-font-family,ui-monospace,monospace);font-size:12px;
 line-height:1.45}
.cayu-live .cayu th{color:var(--jp-ui-font-color2,#59636e);font-weight:500;white-space:nowrap}
.cayu-live .cayu td{overflow-wrap:anywhere}
.cayu-scroll{overflow-x:auto}
.cayu-scroll td.cayu-fixed{white-space:nowrap;overflow-wrap:normal}
.cayu-columns{font-family:var(--jp-code-font-family,ui-monospace,monospace);font-size:12px;padding:0 0 2px 9px;
 white-space:nowrap;overflow:hidden;color:var(--jp-ui-font-color2,#59636e)}
.cayu-badge.cayu-mark{border-color:var(--jp-border-color1,#afb8c1)}
.cayu-mark::before{content:"";display:inline-block;width:8px;height:8px;border-radius:50%;margin-right:6px;
 background:currentColor}
.cayu-mark span{color:var(--jp-ui-font-color1,#1f2328)}
.cayu-edited,.cayu-answered{color:var(--jp-success-color1,#1a7f37)}
.cayu-expired,.cayu-error{color:var(--jp-error-color1,#b3261e)}
.cayu-paused,.cayu-unreachable,.cayu-stale{color:var(--jp-warn-color1,#9a6700)}
.cayu-live-now,.cayu-submitting{color:var(--jp-info-color1,#0969da)}
.cayu-problem{border-left:3px solid var(--jp-error-color1,#b3261e);padding:2px 10px;margin:6px 0;
 overflow-wrap:anywhere}
</style>"""
)


def panel(title: str, badge: str, lines: Iterable[str], *, kind: str = "") -> str:
    """Return the inside of a frame: `title`, `badge` and `kind` are plain text, `lines` are HTML."""
    mark = f'<span class="cayu-badge cayu-mark cayu-{esc(kind)}"><span>{esc(badge)}</span></span>' if badge else ""
    return f'{STYLE}<div class="cayu" role="status"><h4>{esc(title)}{mark}</h4>{"".join(lines)}</div>'


def folded_away(summary: str, lines: Iterable[str]) -> str:
    """Return lines of HTML behind a summary that opens them."""
    return f'<details class="cayu-asked"><summary>{esc(summary)}</summary>{"".join(lines)}</details>'


def muted(text: str) -> str:
    """Return a line of small print."""
    return f'<div class="cayu-muted">{esc(text)}</div>' if text else ""


def aside(text: str) -> str:
    """Return a line of small print that stands alone."""
    return f'<div class="cayu">{muted(text)}</div>'


def problem_html(text: str) -> str:
    """Return what went wrong, marked as such."""
    return f'<div class="cayu"><div class="cayu-problem" role="alert">{esc(text)}</div></div>' if text else ""


def code_lines(action: PendingAction) -> list[str]:
    """Return the code that decides an action where nobody can click."""
    find = f"action = next(each for each in lab.pending(session={action.session!r}) if each.id == {action.id!r})"
    then = "action.answer('...')" if action.kind == "user_input" else "action.approve()   # or action.deny()"
    return [muted("Headless: there are no buttons. This code decides:"), f"<pre>{esc(find)}\n{esc(then)}</pre>"]


def grouped(number: int) -> str:
    """Return a count with its digits in groups of three: 4 213."""
    return f"{number:,}".replace(",", NARROW_SPACE)


def page_text(start: int, shown: int, total: int) -> str:
    """Return which rows of how many a page holds; `start` counts from 0."""
    if not shown:
        return "0 of " + grouped(total)
    return f"{grouped(start + 1)}-{grouped(start + shown)} of {grouped(total)}"


def duration_text(milliseconds: float) -> str:
    """Return how long something took: "0.4 ms", "41 ms", "3.2 s"."""
    if milliseconds < 1:
        return f"{milliseconds:.1f} ms"
    return f"{milliseconds:.0f} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.1f} s"


def took(call: CallView) -> str:
    """Return how long a call took by the store's clock, "" when it did not run to an end."""
    if call.started_at is None or call.ended_at is None:
        return ""
    return duration_text((call.ended_at - call.started_at) / 1000)


def time_now() -> str:
    """Return this moment as people read it."""
    return datetime.now(UTC).strftime("%H:%M:%S UTC")


def row_label(head: StreamHead, *, opened: bool) -> str:
    """Return a session as one aligned line of text for a list."""
    row, state = head.row, head.state
    waits = f"{state.pending} pending" if state.pending else ""
    cells = (
        _cell(state.status, 12),
        _cell(waits, 10),
        _cell(as_datetime(state.created_at).strftime("%Y-%m-%d %H:%M"), 16),
        _cell(row.agent_name, 16),
        _cell(row.title or row.id, 48),
    )
    mark = OPEN_MARK if opened else WIDE_SPACE
    return mark + WIDE_SPACE + (WIDE_SPACE * 2).join(cells).rstrip(WIDE_SPACE)


def row_header() -> str:
    """Return the column names over the rows of `row_label`."""
    names = (("Status", 12), ("Waits", 10), ("Since (UTC)", 16), ("Agent", 16), ("Title or id", 0))
    line = (WIDE_SPACE * 2).join(_cell(name, width) if width else name for name, width in names)
    return WIDE_SPACE * 2 + line


def _cell(text: object, width: int) -> str:
    plain = " ".join(str(text).split())
    fitted = plain if len(plain) <= width else plain[: width - 1] + "…"
    return fitted.replace(" ", WIDE_SPACE) + WIDE_SPACE * (width - len(fitted))


def rounds_html(view: SessionView) -> str:
    """Return the rounds and their calls as a table, the latest calls last."""
    listed = [(opened.step, str(opened.state), call) for opened in view.rounds for call in opened.calls]
    if not listed:
        return f'<div class="cayu">{muted("No tool has been called.")}</div>'
    hidden = len(listed) - MOST_CALLS
    lead = f"The last {MOST_CALLS} of {grouped(len(listed))} calls; calls_df has them all." if hidden > 0 else ""
    rows = "".join(_call_row(*each) for each in listed[-MOST_CALLS:])
    names = ("Step", "Round", "Call", "Effect", "State", "Started", "Took", "Arguments")
    head = "".join(f'<th scope="col">{name}</th>' for name in names)
    return f'<div class="cayu cayu-scroll">{muted(lead)}<table><tr>{head}</tr>{rows}</table></div>'


def _call_row(step: int, round_state: str, call: CallView) -> str:
    marks = [call.state.replace("_", " ")]
    marks += ["edited"] if call.edited else []
    marks += ["replayed"] if call.replayed else []
    marks += [call.code.replace("_", " ")] if call.code else []
    started = clock_time(call.started_at)[11:-4] if call.started_at is not None else ""
    arguments = json_text(call.arguments)
    short = arguments if len(arguments) <= SHORT_ARGUMENTS else arguments[: SHORT_ARGUMENTS - 1] + "…"
    fixed = (str(step), round_state, call.name, str(call.effect), ", ".join(marks), started, took(call))
    cells = "".join(f'<td class="cayu-fixed">{esc(text)}</td>' for text in fixed)
    return f"<tr>{cells}<td><code>{esc(short)}</code></td></tr>"
