"""When a failed try is tried again."""

import pytest

from attnd import errors, retry


def failed(code, from_attnd=False, pushback_ms=None):
    error = errors.of_code(code, "it failed")
    error.from_attnd, error.pushback_ms = from_attnd, pushback_ms
    return error


def wait_s(error, tries=1, left_s=None, random=0.5):
    return retry.wait_s(error, tries, 4, left_s, random)


@pytest.mark.parametrize(
    "error, is_retried",
    [
        (failed("UNAVAILABLE"), True),
        (failed("UNAVAILABLE", from_attnd=True), True),
        (failed("RESOURCE_EXHAUSTED", from_attnd=True, pushback_ms=5), True),
        (failed("RESOURCE_EXHAUSTED", from_attnd=True, pushback_ms=-1), False),
        (failed("RESOURCE_EXHAUSTED", from_attnd=True), False),
        (failed("INTERNAL"), True),
        (failed("INTERNAL", from_attnd=True), False),
        (failed("UNKNOWN"), True),
        (failed("UNKNOWN", from_attnd=True), False),
        (failed("INVALID_ARGUMENT"), False),
        (failed("DEADLINE_EXCEEDED"), False),
        (failed("CANCELLED"), False),
        (failed("UNAVAILABLE", pushback_ms=60_001), False),
    ],
)
def test_which(error, is_retried):
    assert (wait_s(error) is not None) == is_retried


def test_how_long():
    assert [wait_s(failed("UNAVAILABLE"), tries) for tries in (1, 2, 3, 4)] == [0.02, 0.04, 0.08, None]
    assert wait_s(failed("UNAVAILABLE"), random=0.0) == pytest.approx(0.016)
    assert wait_s(failed("UNAVAILABLE", pushback_ms=250)) == 0.25
    assert wait_s(failed("UNAVAILABLE"), left_s=0.02) is None
    assert retry.wait_s(failed("UNAVAILABLE"), 20, 30, None, 0.5) == retry.MAX_BACKOFF_S


def test_a_pushback_that_is_no_number_is_never():
    assert [retry.parse_pushback_ms(text) for text in ("250", "-1", "soon", "")] == [250, -1, -1, -1]


def test_the_budget():
    budget = retry.Budget()
    assert [budget.take() for _ in range(11)] == [True] * 10 + [False]
    for _ in range(10):
        assert not budget.take()
        budget.on_call()
    assert budget.take() and not budget.take()
    for _ in range(10_000):
        budget.on_call()
    assert sum(budget.take() for _ in range(200)) == 100
