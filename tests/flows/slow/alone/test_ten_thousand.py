"""10,000 streams at once, whose upstream says a word now and then: in bounded memory, and none of them mixed up."""

from __future__ import annotations

import contextlib
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import StartsGateways
from tests.flows.books import wait_until_settled
from tests.flows.gateway_process import Gateway, eventually, key, secret, settings
from tests.flows.many import USAGE, Helper, raise_limit

from .test_memory import rss

STREAMS = 10_000
WORDS = 4
"""Of each stream."""

KB_A_STREAM = 50
"""What the workers may grow by for each stream. Seen: 26, of which each of the two connections takes a third."""
ROOM = 0.25
"""The second 10,000 may take so much more than the first. Seen: 0.03; 0.25 are 6 KB of each stream that stay behind."""

DESCRIPTORS = 2 * STREAMS
"""A worker needs two for each of its streams, and keeps a quarter from clients; newcomers need not come by halves."""
SETTLED_S = 120.0


@pytest.mark.timeout(400)
def test_ten_thousand_streams_at_once(start_gateway: StartsGateways) -> None:
    raise_limit(DESCRIPTORS)
    with Helper("upstream") as upstream, Helper("clients") as clients:
        gateway = start_gateway(
            settings(
                f"http://127.0.0.1:{upstream.port}/v1",
                server={"workers": 2, "max_in_flight": 2 * STREAMS},
                upstreams={"main": {"max_connections": 2 * STREAMS, "timeouts": {"idle_s": 300}}},
                keys=[key("alice", quotas=[{"tokens": 10**9, "per": "day"}, {"requests": 10**8, "per": "month"}])],
            )
        )
        served = first_streams(gateway, upstream, clients)
        workers, empty, open_before = gateway.workers(), memory(gateway), descriptors(gateway)

        first = round_of(STREAMS, gateway, upstream, clients)
        assert first - empty < STREAMS * KB_A_STREAM * 1024, f"{(first - empty) / STREAMS / 1024:.1f} KB a stream"
        wait_until_closed(gateway, open_before)

        second = round_of(STREAMS, gateway, upstream, clients)
        assert second - first < ROOM * (first - empty), f"{(second - first) / 1e6:.0f} MB more, the second time"
        wait_until_closed(gateway, open_before)

        assert gateway.workers() == workers
        check_sums(gateway, 2 * STREAMS + served)


def first_streams(gateway: Gateway, upstream: Helper, clients: Helper) -> int:
    """Streams for each worker, whose first ones cost more than the next and open its journal; returns their number.

    The workers accept from one socket, so that one of them may take all streams of a round.
    """
    for rounds in range(1, 51):
        round_of(20, gateway, upstream, clients)
        if len(journals_written(gateway)) == len(gateway.workers()):
            return 20 * rounds
    pytest.fail("a worker received none of 1,000 streams")


def journals_written(gateway: Gateway) -> set[Path]:
    """The journals of its workers that have a segment, and not only a lock."""
    return {segment.parent for segment in (gateway.folder / "gateway-journal").glob("*/[0-9]*")}


def round_of(count: int, gateway: Gateway, upstream: Helper, clients: Helper) -> int:
    """So many streams from their first word to their end, all open together; returns the most memory they took."""
    begun = clients.ask(open=count, port=gateway.port, secret=secret("alice"))
    assert (begun["open"], begun["wrong"]) == (count, [])
    assert gateway.metric("gateway_in_flight_requests") == count
    upstream.ask(speak=WORDS - 1)
    assert clients.ask(heard=WORDS)["wrong"] == []
    while_open = memory(gateway)
    assert upstream.ask(end=True)["most"] == count
    ended = clients.ask(ended=WORDS)
    assert (ended["whole"], ended["wrong"]) == (count, [])
    wait_until_settled(gateway, SETTLED_S)
    upstream.ask(hang_up=True)
    eventually(lambda: upstream.ask()["connections"] == 0, 60)
    return max(while_open, memory(gateway))


def memory(gateway: Gateway) -> int:
    """Bytes that its workers have in use; pages that they share count for each."""
    return sum(map(rss, gateway.workers()))


def descriptors(gateway: Gateway) -> Counter[str]:
    """The number of open descriptors of its workers, by kind; empty if the system does not report them."""
    if sys.platform != "linux":
        return Counter()
    found: Counter[str] = Counter()
    for pid in gateway.workers():
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found[re.sub(r"[0-9]+", "N", str(path.readlink()))] += 1
    return found


def wait_until_closed(gateway: Gateway, before: Counter[str]) -> None:
    """Until its workers have no more open than before; fails with what is left."""
    try:
        eventually(lambda: descriptors(gateway).total() <= before.total(), 60)
    except AssertionError:
        pytest.fail(f"open, and not before: {descriptors(gateway) - before}")


def check_sums(gateway: Gateway, count: int) -> None:
    """Each stream counts once, as its upstream reported it: in the reports, the quotas and the metrics."""
    prompt, completion = USAGE
    (row,) = gateway.usage(group_by="key")
    found = (row["requests"], row["errors"], row["prompt_tokens"], row["completion_tokens"], row["estimated_tokens"])
    assert found == (count, 0, count * prompt, count * completion, 0)
    used = {quota["unit"]: (quota["used"], quota["reserved"]) for quota in gateway.admin("quotas").json["data"]}
    assert used == {"tokens": (count * (prompt + completion), 0), "requests": (count, 0)}
    assert gateway.metric("gateway_requests_total", key="alice", status="200") == count
    assert gateway.metric("gateway_in_flight_requests") == 0
    eventually(lambda: gateway.metric("gateway_journal_pending_records") == 0)  # it is looked at each second
