"""Decisions for notebooks that run without a reader."""

from __future__ import annotations

from collections.abc import Iterable

from cayu.notebook.headless import script_decisions


def decide(decisions: Iterable[str]) -> None:
    """Have decisions ready for the prompts to come: `approve`, `deny`, or the text of an answer.

    Works with `CAYU_HEADLESS=1`; a prompt without a scripted decision fails at once.
    """
    script_decisions(decisions)
