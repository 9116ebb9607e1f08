"""Tests the JSON domain, its canonical bytes and the digests made of them."""

import enum
import math
import random
import sys
from typing import Any

import orjson
import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from cayu.canonical import (
    MAX_DEPTH,
    MAX_EXACT_INTEGER,
    MAX_STORED_INTEGER,
    canonical_bytes,
    dumps,
    file_digest,
    fingerprint,
    keyed_fingerprint,
    loads,
    normalise,
    same,
)
from cayu.errors import NotJson

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=12)
"""Text with lone surrogates in it now and then."""
TEXT = st.text(max_size=12)
INTEGERS = st.integers(-MAX_STORED_INTEGER, MAX_STORED_INTEGER)
LEAVES = st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False, allow_infinity=False)


def values(text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        LEAVES | text,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
        max_leaves=12,
    )


VALUES = values(TEXT)


def shuffled(value: Any, seed: int) -> Any:
    """The same value with the keys of every object in another order."""
    if isinstance(value, list):
        return [shuffled(item, seed) for item in value]
    if isinstance(value, dict):
        keys = list(value)
        random.Random(seed).shuffle(keys)
        return {key: shuffled(value[key], seed) for key in keys}
    return value


def containers(value: Any) -> list[Any]:
    """Every list and dict inside a value."""
    if isinstance(value, list):
        return [value, *(found for item in value for found in containers(item))]
    if isinstance(value, dict):
        return [value, *(found for item in value.values() for found in containers(item))]
    return []


@given(values(ANY_TEXT))
def test_normalise_is_idempotent(value: Any) -> None:
    once = normalise(value)
    assert normalise(once) == once
    assert repr(normalise(once)) == repr(once)


@given(VALUES)
def test_a_value_inside_the_domain_is_kept_as_it_is(value: Any) -> None:
    assert repr(normalise(value)) == repr(value)


@given(VALUES)
def test_the_copy_is_detached(value: Any) -> None:
    mine = {id(part) for part in containers(value)}
    assert not mine & {id(part) for part in containers(normalise(value))}


@given(values(ANY_TEXT))
def test_what_is_normalised_can_be_stored_and_read_back(value: Any) -> None:
    once = normalise(value)
    assert loads(dumps(once)) == once
    assert loads(dumps(once).decode()) == once


@given(VALUES, st.integers(0, 99))
def test_canonical_bytes_do_not_depend_on_the_order_of_keys(value: Any, seed: int) -> None:
    assert canonical_bytes(shuffled(value, seed)) == canonical_bytes(value)


@given(VALUES)
def test_canonical_bytes_survive_storage(value: Any) -> None:
    assert canonical_bytes(loads(dumps(value))) == canonical_bytes(value)


@given(VALUES)
def test_canonical_bytes_are_json_text(value: Any) -> None:
    text = canonical_bytes(value)
    assert canonical_bytes(value) == text
    orjson.loads(text)


@given(VALUES, VALUES)
def test_different_values_have_different_bytes(left: Any, right: Any) -> None:
    def plain(value: Any) -> str:
        """The value as JSON sees it, where 1 and 1.0 are one number, and true is none."""
        if isinstance(value, list):
            return f"[{','.join(map(plain, value))}]"
        if isinstance(value, dict):
            return "{" + ",".join(f"{key!r}:{plain(value[key])}" for key in sorted(value)) + "}"
        if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_EXACT_INTEGER:
            return repr(int(value))
        return repr(value)

    assert (canonical_bytes(left) == canonical_bytes(right)) == (plain(left) == plain(right))


@given(st.integers(MAX_EXACT_INTEGER + 1, MAX_STORED_INTEGER), st.sampled_from([1, -1]))
def test_a_big_integer_is_a_tagged_string_and_collides_with_no_text(number: int, sign: int) -> None:
    number *= sign
    tagged = canonical_bytes(number)
    text = loads(tagged)
    assert isinstance(text, str)
    assert str(number) in text
    assert canonical_bytes(text) != tagged
    assert canonical_bytes(loads(canonical_bytes(text))) != canonical_bytes(text)
    assert canonical_bytes(number + sign if abs(number) < MAX_STORED_INTEGER else number - sign) != tagged


@given(st.sampled_from(["$int:", "$str:", "$str:$int:", "$str:$str:", "$int", ""]), TEXT)
def test_text_that_looks_like_a_tag_stays_distinct(prefix: str, rest: str) -> None:
    forms = {f"{prefix}{rest}", f"$str:{prefix}{rest}", f"$int:{prefix}{rest}"}
    assert len({canonical_bytes(form) for form in forms}) == len(forms)


@pytest.mark.parametrize("number", [0, 1, -1, MAX_EXACT_INTEGER, -MAX_EXACT_INTEGER])
def test_an_exact_integer_is_written_as_a_number(number: int) -> None:
    assert canonical_bytes(number) == str(number).encode()


def test_known_bytes() -> None:
    value = {"b": [1.0, -0.0, 1e21, True, None], "a": 'é\n"\\', "€": 0.1, "\U0001f600": 2, "\ufb33": 3}
    assert canonical_bytes(value) == (
        '{"a":"é\\n\\"\\\\","b":[1,0,1e+21,true,null],"€":0.1,"\U0001f600":2,"\ufb33":3}'.encode()
    )


@pytest.mark.parametrize("number", [MAX_STORED_INTEGER + 1, -MAX_STORED_INTEGER - 1, 10**400])
def test_integers_beyond_64_bits_are_refused(number: int) -> None:
    with pytest.raises(NotJson, match=r"at \$\.a\[1\] is an integer beyond 64 bits"):
        normalise({"a": [0, number]})


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_are_refused(number: float) -> None:
    with pytest.raises(NotJson) as caught:
        normalise([{"x": number}])
    assert (caught.value.path, caught.value.problem) == ("$[0].x", "not a finite number")


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", 1j, range(3), Exception("x"), int])
def test_other_types_are_refused_without_their_content(value: object) -> None:
    with pytest.raises(NotJson) as caught:
        normalise({"x": value})
    assert caught.value.path == "$.x"
    assert str(caught.value).startswith(f"The value at $.x is of type {type(value).__name__}")


@pytest.mark.parametrize("key", [1, None, True, (1,), 1.5])
def test_keys_that_are_not_text_are_refused(key: object) -> None:
    with pytest.raises(NotJson, match=f"a key of type {type(key).__name__}"):
        normalise({"a": [{key: 1}]})


def test_tuples_become_lists() -> None:
    assert normalise(((1, 2), {"a": (3,)})) == [[1, 2], {"a": [3]}]
    assert type(normalise((1,))) is list


@pytest.mark.parametrize(
    "text,kept",
    [("\ud800", "\ufffd"), ("a\udc00b", "a\ufffdb"), ("\ud83d\ude00", "\U0001f600"), ("\x00\x7f", "\x00\x7f")],
)
def test_lone_surrogates_are_replaced_and_pairs_joined(text: str, kept: str) -> None:
    assert normalise([text]) == [kept]
    assert normalise({text: 1}) == {kept: 1}


def test_no_key_is_lost_when_surrogates_are_replaced() -> None:
    try:
        kept = normalise({chr(0xD800): 1, chr(0xDFFF): 2})
    except NotJson:
        return
    assert sorted(kept.values()) == [1, 2]


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def test_nesting_is_bounded() -> None:
    deepest = nested(MAX_DEPTH)
    assert normalise(deepest) == deepest
    assert canonical_bytes(deepest) == b"[" * MAX_DEPTH + b"0" + b"]" * MAX_DEPTH
    for value in (nested(MAX_DEPTH + 1), nested(sys.getrecursionlimit() * 2), {"a": nested(MAX_DEPTH)}):
        with pytest.raises(NotJson, match="nested deeper than 64 levels"):
            normalise(value)


def test_a_cycle_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(NotJson, match="nested deeper"):
        normalise(loop)


class Text(str):
    __slots__ = ()

    def __str__(self) -> str:
        return "something else"


class Colour(str, enum.Enum):  # noqa: UP042 - the older way to write it, of which much is about
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Ratio(float):
    pass


@pytest.mark.parametrize(
    "value,kept",
    [(Colour.RED, "red"), (Text("plain"), "plain"), (Text("é"), "é"), (Level.HIGH, 3), (Ratio(0.5), 0.5)],
)
def test_subclasses_become_their_plain_value(value: Any, kept: Any) -> None:
    found = normalise(value)
    assert type(found) is type(kept)
    assert found == kept


def test_a_fingerprint_depends_on_kind_and_value() -> None:
    found = {fingerprint(kind, value) for kind in ("a", "b") for value in (1, "1", [1], None)}
    assert len(found) == 8
    assert all(len(digest) == 64 and set(digest) <= set("0123456789abcdef") for digest in found)
    assert fingerprint("a", {"x": 1, "y": 2}) == fingerprint("a", {"y": 2, "x": 1})
    assert fingerprint("cayu.test", {"n": 1}) == "7f2468fd8fe2abb2128c58588dba785b995226d93dfb496e82d49930efff8dcc"


def test_a_keyed_fingerprint_depends_on_the_secret_too() -> None:
    found = {keyed_fingerprint(secret, kind, value) for secret in (b"a", b"b") for kind in "ab" for value in (1, 2)}
    assert len(found) == 8
    assert keyed_fingerprint(b"a", "k", 1) == keyed_fingerprint(b"a", "k", 1) != fingerprint("k", 1)


def test_a_file_digest_is_plain_sha256() -> None:
    assert file_digest(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_comparison_in_constant_time_compares() -> None:
    assert same("abc", "abc")
    assert same("é", "é")
    assert not same("abc", "abd")
    assert not same("abc", "ab")


ASCII = st.text(st.characters(max_codepoint=127))
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-MAX_EXACT_INTEGER, MAX_EXACT_INTEGER) | ASCII,
    lambda inner: st.lists(inner) | st.dictionaries(ASCII, inner),
)


@given(PLAIN)
def test_the_short_way_to_canonical_bytes_is_the_standard_one(value: Any) -> None:
    if "$" not in repr(value):
        assert canonical_bytes(value) == rfc8785.dumps(value)
