"""How long a value lives, as a writer says it."""

from datetime import UTC, datetime, timedelta

import pytest

from slateboard import Append, Invalid, Put


@pytest.mark.parametrize("ttl", [90, 90.0, timedelta(seconds=90)])
def test_a_lifetime_is_a_timedelta_or_seconds(ttl: float | timedelta) -> None:
    assert Put("k", 1, absent=True, ttl=ttl).content.ttl.ToTimedelta() == timedelta(seconds=90)
    assert not Append("log/", 1).content.HasField("ttl")


def test_a_lifetime_and_a_moment_of_expiry_exclude_each_other() -> None:
    with pytest.raises(Invalid, match="not both"):
        Put("k", 1, absent=True, ttl=90, expire_time=datetime(2030, 1, 1, tzinfo=UTC))


@pytest.mark.parametrize("ttl", [-1, float("nan"), float("inf")])
def test_a_lifetime_that_is_no_span_of_time_is_refused(ttl: float) -> None:
    with pytest.raises(Invalid):
        Put("k", 1, absent=True, ttl=ttl)
