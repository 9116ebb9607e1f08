"""The command line as a whole: its help, its version, its exit codes, and how light it is."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest
from cli.support import cayu

COMMANDS = (
    *(("recovery", name) for name in ("plan", "execute", "startup", "resume")),
    *(("sessions", name) for name in ("list", "show", "interrupt", "resume")),
    *((name,) for name in ("pending", "approve", "deny", "answer", "guide")),
)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_says_what_it_does_how_it_exits_and_how_it_is_called(words: tuple[str, ...]) -> None:
    done = cayu(*words, "--help", width=80)
    assert done.code == 0
    for told in ("Exit codes:", "\n    0  ", "\n    1  ", "\n    2  wrong usage", "Example", f"cayu {' '.join(words)}"):
        assert told in done.out
    assert "--json" in done.out
    assert "\b" not in done.out


def test_the_help_lists_every_command_with_a_whole_sentence() -> None:
    for words in ((), ("recovery",), ("sessions",)):
        done = cayu(*words, "--help", width=80)
        _, _, listed = done.out.partition("\nCommands:\n")
        lines = listed.splitlines()
        assert {line.split()[0] for line in lines} >= {
            each[len(words)] for each in COMMANDS if each[: len(words)] == words
        }
        assert all(line.endswith(".") and not line.endswith("...") for line in lines)
    assert "Exit codes:" in cayu("--help").out
    assert "A second Ctrl-C" in cayu("--help").out


def test_the_version_is_the_distributions() -> None:
    assert cayu("--version").out == f"cayu-lab {version('cayu-lab')}\n"


def test_without_a_command_the_help_is_shown() -> None:
    done = cayu()
    assert done.code == 2
    assert "Look after durable agents" in done.out + done.err


@pytest.mark.slow
def test_the_command_line_loads_nothing_heavy() -> None:
    code = (
        "import sys, cayu.cli.main; heavy = {'pandas', 'plotly', 'ipywidgets', 'numpy', 'scipy', 'markdown_it', "
        "'cayu.notebook', 'cayu.server', 'cayu.testing'}; print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
