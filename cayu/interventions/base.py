"""What the records of interventions have in common."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from pydantic import AfterValidator, BaseModel, ConfigDict

from cayu.messages import Frozen


class ExecutionModel(Frozen):
    """A frozen record that refuses unknown fields and never shows a value in an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


def _detached(value: Any) -> Any:
    return deepcopy(value)


def _copied(value: Any) -> Any:
    return value.model_copy() if isinstance(value, BaseModel) else value


Detached = AfterValidator(_detached)
"""Keeps a record apart from a value that it was made of and that can be changed inside."""
Copied = AfterValidator(_copied)
"""Keeps a record apart from a value whose own parts cannot be changed."""
