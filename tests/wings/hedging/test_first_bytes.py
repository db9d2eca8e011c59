"""The time to the first byte that 95 of 100 attempts keep."""

from __future__ import annotations

from gateway.wings.hedging.first_bytes import FLOOR_S, KEPT, MAX_SERIES, MIN_SAMPLES, FirstByteTimes


def times_of(*seconds: float, model: str = "m", is_stream: bool = True) -> FirstByteTimes:
    times = FirstByteTimes()
    for each in seconds:
        times.note(model, is_stream, each)
    return times


def test_too_few_say_nothing() -> None:
    assert times_of(*[1.0] * (MIN_SAMPLES - 1)).p95_s("m", True) is None
    assert times_of(*[1.0] * MIN_SAMPLES).p95_s("m", True) == 1.0


def test_it_is_the_time_of_the_slowest_twentieth() -> None:
    assert times_of(*[float(number) for number in range(1, 101)]).p95_s("m", True) == 95.0


def test_streams_plain_answers_and_models_are_apart() -> None:
    times = times_of(*[1.0] * MIN_SAMPLES)
    assert times.p95_s("m", False) is None
    assert times.p95_s("n", True) is None


def test_it_is_never_lower_than_the_floor() -> None:
    assert times_of(*[0.001] * MIN_SAMPLES).p95_s("m", True) == FLOOR_S


def test_the_last_ones_count() -> None:
    assert times_of(*[9.0] * KEPT, *[1.0] * KEPT).p95_s("m", True) == 1.0


def test_invented_models_fill_no_memory() -> None:
    times = times_of(*[1.0] * MIN_SAMPLES)
    for number in range(MAX_SERIES):
        times.note(f"invented-{number}", True, 1.0)
    assert times.p95_s("m", True) is None
    assert times.p95_s("invented-1", True) is None  # one sample
