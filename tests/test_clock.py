"""Tests the clocks and the exact way between microseconds and datetimes."""

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cayu.clock import MICROSECOND, Clock, SystemClock, as_datetime, as_microseconds

LAST = as_microseconds(datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC))
FIRST = as_microseconds(datetime(1, 1, 1, tzinfo=UTC))


@given(st.integers(FIRST, LAST))
def test_microseconds_and_datetimes_convert_without_loss(count: int) -> None:
    moment = as_datetime(count)
    assert moment.tzinfo is UTC
    assert as_microseconds(moment) == count


@given(st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1)), st.integers(-23 * 60, 23 * 60))
def test_the_zone_of_a_datetime_does_not_matter(moment: datetime, minutes: int) -> None:
    here = moment.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    assert as_datetime(as_microseconds(here)) == here


def test_the_origin_is_1970_in_utc() -> None:
    assert as_datetime(0) == datetime(1970, 1, 1, tzinfo=UTC)
    assert as_datetime(-1) == datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    assert as_microseconds(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)) == MICROSECOND


def test_a_naive_datetime_is_refused() -> None:
    with pytest.raises(TypeError):
        as_microseconds(datetime(2030, 1, 1))


def test_the_system_clock_tells_the_time() -> None:
    clock: Clock = SystemClock()
    before, now, after = time.time_ns() // 1000, clock.now_us(), time.time_ns() // 1000
    assert isinstance(now, int)
    assert before <= now <= after
    first, second = clock.monotonic(), clock.monotonic()
    assert first <= second
