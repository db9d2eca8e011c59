"""Where a second attempt beside a slow one goes, and when. The clock is the test's."""

from __future__ import annotations

from gateway.config.wings import model_kinds
from gateway.upstream.circuit_breaker import CONSECUTIVE_FAILURES
from gateway.upstream.health import MIN_REPEATS
from gateway.wings.hedging.first_bytes import MIN_SAMPLES
from gateway.wings.hedging.layers import beside, hedge_after_s, note_first_byte
from tests.accounting.test_call_log import a_call
from tests.upstream.test_router import ERROR, Stand, stand

__all__ = ["stand"]


async def test_a_second_attempt_beside_the_first_goes_to_another_healthy_upstream(stand: Stand) -> None:
    call, routes = a_call(), stand.routes("two")
    first, other = routes
    assert beside(stand.router, routes, call, {first}) == other
    assert beside(stand.router, routes, call, {first, other}) is None
    assert beside(stand.router, stand.routes("m"), call, set(stand.routes("m"))) is None
    stand.call(ERROR, "two", times=CONSECUTIVE_FAILURES, place=1)
    assert beside(stand.router, routes, call, {first}) is None


async def test_second_attempts_are_within_the_retry_budget(stand: Stand) -> None:
    call, routes = a_call(), stand.routes("two")
    found = [beside(stand.router, routes, call, {routes[0]}) for _ in range(MIN_REPEATS + 1)]
    assert found == [routes[1]] * MIN_REPEATS + [None]


async def test_the_time_of_a_hedge_is_as_the_model_says(stand: Stand) -> None:
    call, route = a_call(), stand.routes("two")[1]

    def after_s(wanted: str | float | None) -> float | None:
        _, kind = model_kinds()
        model = kind.model_validate({**call.model.model_dump(exclude_unset=True), "hedge_after": wanted})
        return hedge_after_s(stand.router, call._replace(model=model), route)

    assert (after_s(None), after_s(2.0), after_s("p95")) == (None, 2.0, None)
    for _ in range(MIN_SAMPLES):
        note_first_byte(stand.router, call, route, 0.7)
    assert (after_s(2.0), after_s("p95")) == (2.0, 0.7)
