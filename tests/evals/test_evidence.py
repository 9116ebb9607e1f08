"""What an evaluation says of the memory behind a result: a closed list of reasons, and sources under a key."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from cayu.evals import EvalMemoryEvidenceLimitation, EvalMemorySourceAliasV1

LIMITATIONS = """source_limit source_bytes_limit projection_bytes_limit runtime_attribution_truncated store_unsupported
evidence_read_failed alias_key_unavailable missing deleted legacy contradictory_lineage source_tree_incomplete
closure_changed deadline_expired"""


def test_the_limitations_are_those_of_the_contract() -> None:
    assert [str(each) for each in EvalMemoryEvidenceLimitation] == LIMITATIONS.split()


def test_an_alias_has_one_algorithm_and_a_whole_digest() -> None:
    alias = EvalMemorySourceAliasV1(key_id="k", digest="0" * 64)
    assert alias.algorithm == "hmac-sha256"
    for wrong in ({"algorithm": "md5"}, {"digest": "0" * 32}, {"key_id": ""}):
        with pytest.raises(ValidationError):
            EvalMemorySourceAliasV1.model_validate(alias.model_dump() | wrong)
