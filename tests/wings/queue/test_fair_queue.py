"""The order of waiting calls, decided without a clock."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.wings.queue.fair_queue import HEEDED_S, FairQueue, Waiting, displaced_by


def never(_: Waiting) -> bool:
    return False


def call(flow: str, cost: int = 10, weight: float = 1.0, **more: int) -> Waiting:
    return Waiting(flow, weight, cost, **more)


def go(queue: FairQueue, now: float = 0.0) -> str | None:
    """The flow of the call that goes next."""
    found = queue.pick(never, now)
    if found is None:
        return None
    queue.remove(found)
    queue.charge(found, found.cost)
    return found.flow


def filled(**flows: list[Waiting]) -> FairQueue:
    queue = FairQueue("x")
    for calls in flows.values():
        for each in calls:
            queue.add(each)
    return queue


def test_flows_take_turns_whatever_their_backlogs() -> None:
    queue = filled(a=[call("a")] + [call("a") for _ in range(50)], b=[call("b"), call("b")])
    assert [go(queue) for _ in range(6)] == ["a", "b", "a", "b", "a", "a"]
    assert queue.count == 47


def test_shares_follow_weights() -> None:
    queue = filled(a=[call("a", weight=3) for _ in range(400)], b=[call("b") for _ in range(400)])
    assert Counter(go(queue) for _ in range(400)) == {"a": 300, "b": 100}


def test_shares_are_of_tokens_and_not_of_calls() -> None:
    queue = filled(a=[call("a", 100) for _ in range(99)], b=[call("b", 10) for _ in range(990)])
    assert Counter(go(queue) for _ in range(220)) == {"a": 20, "b": 200}


CALLS = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 9), st.sampled_from([1.0, 2.0, 5.0])), max_size=12)


@given(CALLS)
def test_positions_are_the_order_in_which_calls_go(given_calls: list[tuple[str, int, float]]) -> None:
    queue = FairQueue("x")
    weights: dict[str, float] = {}
    calls = [call(flow, cost, weights.setdefault(flow, weight)) for flow, cost, weight in given_calls]
    for each in calls:
        queue.add(each)
    while queue.count:
        waiting = [each for each in calls if queue.position(each)]
        positions = sorted(waiting, key=queue.position)
        assert [queue.position(each) for each in positions] == list(range(1, len(waiting) + 1))
        found = queue.pick(never, 0.0)
        assert found is positions[0]
        queue.remove(found)
        queue.charge(found, found.cost)
        calls.remove(found)


def test_the_calls_of_one_flow_go_in_the_order_in_which_they_came() -> None:
    calls = [call("a", number) for number in (3, 1, 2)]
    queue = filled(a=calls)
    assert [queue.pick(never, 0)] == calls[:1]
    for each in calls:
        assert queue.pick(never, 0) is each
        queue.remove(each)


def test_the_real_use_corrects_the_estimate() -> None:
    queue = filled(a=[call("a") for _ in range(9)], b=[call("b") for _ in range(9)])
    first = queue.pick(never, 0)
    assert first is not None
    assert go(queue) == "a"
    queue.charge(first, 30)  # it took 40 instead of 10
    assert [go(queue) for _ in range(6)] == ["b", "b", "b", "b", "a", "b"]


def test_an_idle_flow_saves_up_no_service() -> None:
    queue = filled(a=[call("a") for _ in range(200)])
    for _ in range(100):
        go(queue)
    for _ in range(50):
        queue.add(call("late"))
    assert Counter(go(queue) for _ in range(20)) == {"a": 10, "late": 10}


def test_a_flow_with_one_call_waits_for_at_most_one_call_of_each_other() -> None:
    others = {f"k{number}": [call(f"k{number}") for _ in range(100)] for number in range(5)}
    queue = filled(**others)
    for _ in range(73):
        go(queue)
    queue.add(call("now"))
    assert "now" in [go(queue) for _ in range(6)]


def test_a_call_that_found_no_room_keeps_its_place() -> None:
    calls = [call("a", 1), call("a", 2), call("a", 3)]
    queue = filled(a=calls, b=[call("b")])
    for each in calls[:2]:
        queue.begin_turn(each)
    assert queue.count == 2
    for each in calls[:2]:
        queue.end_turn(each, has_room=False, waits_on=True)
    assert queue.pick(never, 0) is calls[0]
    assert queue.count == 4
    assert queue.counters == {"a": 0.0, "b": 0.0}


def test_who_has_a_turn_is_not_overtaken_by_the_virtual_time() -> None:
    urgent = call("urgent", weight=16)
    queue = filled(a=[call("a") for _ in range(9)], urgent=[urgent])
    queue.begin_turn(urgent)
    for _ in range(5):
        go(queue)
    queue.end_turn(urgent, has_room=False, waits_on=True)
    assert queue.pick(never, 0) is urgent


def test_a_call_blocked_by_its_own_limit_delays_no_other() -> None:
    queue = filled(a=[call("a", size=1), call("a", size=2)], b=[call("b", 99)])
    go(queue)
    go(queue)
    queue.add(call("b", 99, size=1))
    found = queue.pick(lambda each: each.size == 1, 0)
    assert found is not None
    assert (found.flow, found.size) == ("a", 2)
    assert queue.pick(lambda _: True, 0) is None


def test_when_it_is_full_the_longest_flow_gives_up_its_last_call() -> None:
    heavy = [call("a") for _ in range(5)]
    queue = filled(a=heavy, b=[call("b")])
    assert displaced_by([queue], call("b"), 1, 0) == heavy[-1:]
    assert displaced_by([queue], call("new"), 1, 0) == heavy[-1:]
    assert not displaced_by([queue], call("a"), 1, 0)
    light = filled(a=[call("a", weight=16) for _ in range(5)], b=[call("b")])
    assert displaced_by([light], call("c", weight=2), 1, 0)
    assert not displaced_by([light], call("b", weight=1), 1, 0)
    assert not displaced_by([FairQueue()], call("a"), 1, 0)


def test_a_flood_of_small_calls_keeps_no_large_one_out_and_displaces_none() -> None:
    flood, large = [call("a", cost=1) for _ in range(9)], call("b", cost=4000)
    queue = filled(a=flood, b=[large])
    assert displaced_by([queue], call("c", cost=4000), 1, 0) == flood[-1:]
    assert not displaced_by([queue], call("a", cost=1), 1, 0)


def test_the_longest_flow_gives_up_its_call_for_whatever_upstreams_that_waits() -> None:
    flood, few = [call("a") for _ in range(5)], [call("a"), call("b")]
    queues = [filled(a=flood), filled(a=few[:1], b=few[1:])]
    assert displaced_by(queues, call("c"), 1, 0) == flood[-1:]
    assert displaced_by(queues, call("c"), 6, 0) == ()  # the last of them would be no longer than the new flow
    assert not displaced_by(queues, call("a"), 1, 0)


def test_as_many_calls_are_displaced_as_hold_the_bytes_of_the_new_one() -> None:
    a, b = [call("a", size=100) for _ in range(5)], [call("b", size=100) for _ in range(4)]
    queue = filled(a=a, b=b)
    assert displaced_by([queue], call("new", size=250), 0, 250) == [a[4], a[3], b[3]]
    assert not displaced_by([queue], call("new", size=900), 0, 900)  # it would be the longest itself
    assert not displaced_by([queue], call("new"), 0, 901)  # there are no more
    assert queue.size == 900


def test_a_call_that_has_its_turn_holds_its_place() -> None:
    queue = filled(a=[call("a", size=100), call("a", size=50)])
    asking = queue.pick(never, 0)
    assert asking is not None
    queue.begin_turn(asking)
    assert (queue.count, queue.places, queue.size) == (1, 2, 150)
    queue.end_turn(asking, has_room=False, waits_on=True)
    assert (queue.count, queue.places, queue.size) == (2, 2, 150)
    queue.begin_turn(asking)
    queue.end_turn(asking, has_room=True)
    assert (queue.count, queue.places, queue.size) == (1, 1, 50)


def test_how_many_go_before_a_new_call() -> None:
    queue = filled(a=[call("a") for _ in range(10)], b=[call("b") for _ in range(4)])
    assert queue.ahead_of(call("new")) == 0
    assert queue.ahead_of(call("b")) == 8  # four of each
    assert queue.ahead_of(call("a")) == 14
    there = filled(b=[call("b") for _ in range(6)], c=[call("c") for _ in range(3)])
    tell(there, queue)
    assert queue.ahead_of(call("new")) == 0
    assert queue.ahead_of(call("b")) == 10 + 10 + 3
    assert queue.ahead_of(call("c")) == 3 + 3 + 3


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50)), min_size=30, max_size=120))
def test_two_flows_that_both_wait_are_never_further_apart_than_a_call_of_each(arrivals: list[tuple[str, int]]) -> None:
    """Start-time fair queueing, theorem 1: |W_f / w_f - W_g / w_g| <= l_f / w_f + l_g / w_g."""
    weights = {"a": 1.0, "b": 2.0, "c": 5.0}
    queue = filled(x=[call(flow, cost, weights[flow]) for flow, cost in arrivals])
    served = dict.fromkeys("abc", 0.0)
    while queue.count:
        waiting = {flow for flow, _ in queue.flows()}
        found = queue.pick(never, 0)
        assert found is not None
        queue.remove(found)
        queue.charge(found, found.cost)
        served[found.flow] += found.work
        still = waiting & {flow for flow, _ in queue.flows()}
        for one in still:
            for other in still:
                assert served[one] - served[other] <= 50 / weights[one] + 50 / weights[other]


# ---------------------------------------------------------------------------------------------------- other workers


def tell(one: FairQueue, other: FairQueue, now: float = 0.0) -> None:
    other.read({"one": one.post(never)}, now)


def test_a_call_of_another_worker_goes_first_where_its_flow_had_less() -> None:
    here, there = filled(a=[call("a") for _ in range(9)]), FairQueue("y")
    tell(there, here)
    for _ in range(3):
        go(here)
    there.counters["b"] = 5.0
    there.add(call("b"))
    tell(there, here)
    assert go(here, now=0.1) is None
    assert go(here, now=HEEDED_S) == "a"  # not for ever: the other worker has said nothing since
    tell(there, here, now=0.2)
    assert go(here, now=0.3) is None
    go(there)
    tell(there, here, now=0.3)
    assert go(here, now=0.3) == "a"


def test_a_flow_that_waits_here_too_needs_no_other_to_go_first() -> None:
    here, there = filled(a=[call("a"), call("a")]), filled(a=[call("a")])
    here.charge(call("a"), 50)
    tell(there, here)
    assert go(here) == "a"


def test_a_post_that_is_read_again_is_not_heeded_for_longer() -> None:
    here, there = filled(a=[call("a"), call("a")]), filled(b=[call("b")])
    post = {"there": there.post(never)}
    here.read(post, 0.0)
    go(here)
    here.counters["a"] = 99.0
    assert go(here, now=0.1) is None
    here.read(post, 0.1)
    assert go(here, now=0.25) == "a"
    here.read({}, 0.3)
    assert here.goes_first(0.3) == float("inf")


def test_what_others_served_counts_here() -> None:
    here, there = filled(a=[call("a") for _ in range(9)], b=[call("b") for _ in range(9)]), FairQueue("y")
    tell(there, here)
    for _ in range(3):
        there.charge(call("a"), 10)
    tell(there, here)
    tell(there, here)
    assert [go(here) for _ in range(4)] == ["b", "b", "b", "a"]


def test_a_new_queue_begins_where_the_older_ones_are() -> None:
    old, new = filled(a=[call("a") for _ in range(50)]), filled(b=[call("b") for _ in range(50)])
    for _ in range(40):
        go(old)
    tell(old, new)
    assert new.counters["b"] == old.virtual_time > 0
    assert new.goes_first(0.0) == old.counters["a"]


def test_another_queue_of_the_same_worker_has_other_sums() -> None:
    here, there = FairQueue("x"), FairQueue("y")
    there.charge(call("a"), 500)
    here.read({"one": there.post(never)}, 1.0)
    again = FairQueue("z")
    again.charge(call("a"), 700)
    before = here.counters.get("a", 0.0)
    here.read({"one": again.post(never)}, 1.0)
    assert here.counters.get("a", 0.0) == before


def test_a_flow_pays_no_more_back_than_a_call_of_what_it_got_before_another_worker_was_known() -> None:
    light, heavy = filled(light=[call("light") for _ in range(20)]), FairQueue("y")
    tell(light, heavy)
    heavy.add(call("heavy"))
    for _ in range(6):
        assert go(light) == "light"  # it has not heard of `heavy`
    tell(heavy, light)
    tell(light, heavy)
    assert light.counters["light"] == 60
    assert heavy.counters["heavy"] == light.virtual_time == 50
    for _ in range(3):
        heavy.post(never)
    for _ in range(6):
        go(light)
    light.virtual_time = 110
    tell(light, heavy)
    tell(light, heavy)
    assert heavy.counters["heavy"] == 50  # the other has heard of it, and served before it what it wanted to


@pytest.mark.parametrize("blocked", [True, False])
def test_a_flow_that_is_blocked_by_its_own_limit_is_not_posted(blocked: bool) -> None:
    queue = filled(a=[call("a")])
    other = FairQueue("y")
    other.read({"one": queue.post(lambda _: blocked)}, 1.0)
    assert (other.goes_first(0.0) < float("inf")) is not blocked
