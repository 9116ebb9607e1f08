"""A bench of its own for each test of the command line."""

from pathlib import Path

import pytest
from cli.support import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """An empty folder that will hold a store."""
    return Bench(tmp_path)
