"""The views of one session refuse whatever is no session's handle."""

from __future__ import annotations

from typing import Any

import pytest

from cayu.errors import InvalidInput
from cayu_widgets import PhaseTimeline, SessionView


@pytest.mark.parametrize("view", [SessionView, PhaseTimeline])
@pytest.mark.parametrize("given", ["session-1", None, object()])
def test_a_view_of_no_session_is_refused_with_what_to_pass(view: Any, given: object) -> None:
    with pytest.raises(InvalidInput, match=rf"{view.__name__} shows a session: pass lab\.session\(id\)"):
        view(given)
