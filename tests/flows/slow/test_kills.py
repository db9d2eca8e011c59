"""Usage is never lost and never counted twice, whichever process is killed, at any time.

Kills are SIGKILL, at numbered points (a call is paused exactly there when the process is killed) and at random times.
The upstream and the clients record all calls (`books`), and the gateway's records have to agree with both: a call whose
client got the answer has its usage, no call that reached the upstream is missing, and none is counted twice.

GATEWAY_KILLS: the number of kills at random times, over both stores; the seed is printed.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

from gateway.store import SILENT_S
from tests.conftest import StartsGateways
from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import Scripted
from tests.fakes.wire_proxy import WireProxy
from tests.flows.books import ACCOUNTS, STREAM_PIECES, Callers, ClientCall, Seller, check_books
from tests.flows.gateway_process import Gateway, eventually, settings, side_by_side

STORES = ("embedded", "redis")
KILLS = int(os.environ.get("GATEWAY_KILLS", "200"))
MAX_DEATHS = 4
"""Of workers in one gateway's life; at the fifth within a minute it gives up."""

RESTARTED_S = 20.0

RETIREMENT = b",100,1,0,"
"""How the first argument of a retirement ends on its way to Redis, and that of a batch does not."""


class Place:
    """A gateway's store, which outlives its processes, with the upstream and the clients that record the same calls."""

    def __init__(self, kind: str, folder: Path, start: StartsGateways, pause_s: float = 0.0) -> None:
        self.journal = folder / "journal"
        self._start = start
        self._ends = contextlib.ExitStack()
        self.seller = Seller(pause_s)
        self.callers = Callers()
        self.upstream = self._ends.enter_context(Scripted(always=self.seller))
        self.store = {"url": f"embedded:{folder / 'data'}"}
        if kind == "redis":
            self.redis = self._ends.enter_context(RedisServer(folder / "redis", appendonly="unsynced"))
            self.proxy = self._ends.enter_context(WireProxy(self.redis.port))
            self.store = {"url": self.redis.url_for(port=self.proxy.port)}
        self.gateway: Gateway

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self.seller.let_go()
        if kind is None:
            self.gateway.stop()  # while its store is there
        # A worker that is killed while it sends leaves half a request.
        self.upstream.troubles = [words for words in self.upstream.troubles if "half a request" not in words]
        self._ends.close()

    def open(self, workers: int = 2, *, is_awaited: bool = True, **store: Any) -> Gateway:
        """Start a gateway on this store, the first or the next one; `store`: more settings of the section `store`."""
        config = settings(
            self.upstream.url,
            server={"workers": workers, "drain_timeout_s": 60},
            upstreams={"main": {"timeouts": {"head_s": 300, "idle_s": 300}}},  # longer than a worker is stopped
            store={**self.store, "journal_dir": str(self.journal), **store},
            **ACCOUNTS,
        )
        self.gateway = self._start(config, is_awaited=is_awaited)
        return self.gateway

    def kill_all(self) -> None:
        """The supervisor and its workers at once."""
        self.gateway.expected_code = -signal.SIGKILL
        os.killpg(self.gateway.process.pid, signal.SIGKILL)
        self.gateway.wait()

    def kill_supervisor(self) -> None:
        """Its workers drain by themselves."""
        self.gateway.expected_code = -signal.SIGKILL
        self.gateway.kill(signal.SIGKILL)
        self.gateway.wait()

    def wait_until_replaced(self, *gone: int, workers: int = 2) -> None:
        """Until so many workers run, none of them one of those that are gone, and calls are served."""
        wait_until(lambda: len(found := self.gateway.workers()) == workers and not set(found) & set(gone), RESTARTED_S)

    @contextlib.contextmanager
    def line_cut(self) -> Iterator[None]:
        """Wait at the end of the block until the proxy has cut the connection that the block asked it to cut."""
        before = self.proxy.cuts
        yield
        eventually(lambda: self.proxy.cuts > before, 3 * SILENT_S)

    def check(self, **more: Any) -> dict[str, int]:
        """Whether all three agree; how many calls ended in which way, by the gateway's records."""
        return check_books(self.gateway, self.seller, self.callers.received, **more)

    def ended(self, calls: Iterable[ClientCall]) -> set[str | None]:
        """How these calls ended, by the gateway's records; None where one has none."""
        ends = {row["client_request_id"]: row["ended"] for row in self.gateway.calls(limit=1_000_000)}
        return {ends.get(f"client-{received.number}") for received in calls}


class Held:
    """Calls that are each under way, and each held at its own point by the upstream."""

    def __init__(self, place: Place, calls: list[tuple[bool, int]], who: str = "") -> None:
        self.received: list[ClientCall] = []
        self._threads: list[threading.Thread] = []
        self._place, self._who = place, who
        place.seller.hold_again()
        for is_stream, hold in calls:
            received, work = self._begin(is_stream=is_stream, hold=hold)
            self.received.append(received)
            self._threads.append(work)

        def are_held() -> bool:
            for number, received in enumerate(self.received):
                if received.status == 503:  # a busy machine: the store has needed longer than it may
                    self.received[number], self._threads[number] = self._begin(received.is_stream, calls[number][1])
            return {received.number for received in self.received} <= place.seller.held

        eventually(are_held, 30)

    def _begin(self, is_stream: bool, hold: int) -> tuple[ClientCall, threading.Thread]:
        received = self._place.callers.begin(self._who, is_stream=is_stream)
        arguments = {"hold": hold}
        work = threading.Thread(
            target=self._place.callers.carry, args=(received, self._place.gateway.port), kwargs=arguments, daemon=True
        )
        work.start()
        return received, work

    def join(self) -> None:
        """Until every client has heard the end, or that there is none."""
        for work in self._threads:
            work.join(60)
            assert not work.is_alive(), "a client never heard the end of its call"


EVERY_POINT = [(False, hold) for hold in range(2)] + [(True, hold) for hold in range(STREAM_PIECES)]
"""The request has come and nothing is answered; half of the answer; a stream's head, and each of its events."""


@pytest.fixture
def places(tmp_path: Path, start_gateway: StartsGateways) -> Iterator[Callable[..., Place]]:
    """Makes places, and closes them at the end."""
    with contextlib.ExitStack() as ends:
        made: list[str] = []

        def make(kind: str, **more: Any) -> Place:
            made.append(kind)
            return ends.enter_context(Place(kind, tmp_path / f"place-{len(made)}", start_gateway, **more))

        yield make


def kill(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def wait_until(is_so: Callable[[], object], timeout_s: float) -> None:
    """As `eventually`, for what is dear to look at."""
    end = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < end, f"this never came true within {timeout_s:g} s"
        time.sleep(0.1)


# ---------------------------------------------------------------------------------------------------- numbered points


@pytest.mark.timeout(180)
def test_calls_at_every_point_when_processes_are_killed(places: Callable[..., Place]) -> None:
    side_by_side(*[partial(kill_at_every_point, places(kind), kind) for kind in STORES])


def kill_at_every_point(place: Place, kind: str) -> None:
    place.open()

    # One of two workers: what it carried is lost, what the other carries is not.
    held = Held(place, EVERY_POINT * 2)
    victim = place.gateway.workers()[0]
    answered_and_then(place, lambda: kill(victim))
    place.seller.let_go()
    held.join()
    place.wait_until_replaced(victim)
    place.check()
    assert place.ended(received for received in held.received if received.is_served) <= {"done"}
    assert place.ended(received for received in held.received if not received.is_served) <= {"lost"}

    # Both workers, as soon as a client has seen the end of its stream.
    held = Held(place, EVERY_POINT)
    both = place.gateway.workers()
    last = seen_done_and_then(place, lambda: kill(*both))
    held.join()
    place.seller.let_go()
    place.wait_until_replaced(*both)
    place.check()
    assert place.ended([last]) == {"done"}
    assert place.ended(held.received) == {"lost"}

    # The supervisor: its workers end their open calls while the next gateway serves from the same store.
    held = Held(place, EVERY_POINT)
    place.kill_supervisor()
    place.open()
    assert called(place).is_served
    place.seller.let_go()
    held.join()
    assert all(received.is_served for received in held.received)
    place.check()

    # All at once; and again, while the next two deliver what these have left. Afterwards all places are free.
    held = Held(place, EVERY_POINT)
    single = Held(place, [(True, 2)], "single")
    answered_and_then(place, place.kill_all)
    held.join()
    single.join()
    place.seller.let_go()
    kill_two_heirs(place, kind)
    place.open()
    assert called(place, "single").is_served
    assert place.ended(held.received + single.received) == {"lost"}
    place.check()


@pytest.mark.timeout(180)
def test_a_lone_worker_is_killed_before_it_has_written_its_calls_to_the_store(places: Callable[..., Place]) -> None:
    """The file has what the batches of a lone worker have changed a tenth of a second later, the journal at once."""
    place = places("embedded")
    place.open(1)
    ended: list[ClientCall] = []
    for kill_it in (lambda: kill(*place.gateway.workers()), place.kill_all):
        held = Held(place, EVERY_POINT)
        ended += [called(place) for _ in range(20)]
        gone = place.gateway.workers()
        kill_it()
        held.join()
        place.seller.let_go()
        if kill_it == place.kill_all:
            place.open(1)
        else:
            place.wait_until_replaced(*gone, workers=1)
        assert place.ended(held.received) == {"lost"}
        assert place.ended(ended) == {"done"}
        place.check()


def called(
    place: Place,
    who: str = "",
    *,
    is_stream: bool = False,
    before: Callable[[ClientCall], object] = lambda received: None,
) -> ClientCall:
    """One call; made again while the store needs longer than it may, as on a busy machine it does. `before`: called
    with each call before it is sent."""
    for _ in range(20):
        received = place.callers.begin(who, is_stream=is_stream)
        before(received)
        place.callers.carry(received, place.gateway.port)
        if received.status != 503:
            break
        time.sleep(0.1)
    assert received.status != 503, "the store was too slow for 20 calls"
    return received


def kill_two_heirs(place: Place, kind: str) -> None:
    """Start a gateway that delivers what the dead have left, and kill it while it does; twice."""
    if kind == "redis":
        for fault in (place.proxy.cut_request, place.proxy.lose_reply):
            with place.line_cut():
                fault(of=b"client-")
                place.open(1, is_awaited=False)
            place.kill_all()
    else:
        for has_come in (is_written_to, is_put_away):
            comes = partial(has_come, journals(place))
            place.open(1, is_awaited=False)
            eventually(lambda comes=comes: comes(journals(place)), RESTARTED_S)  # type: ignore[misc]
            place.kill_all()


def journals(place: Place) -> dict[str, int]:
    """Those that are there, of the living and of the dead, and how long their files are."""
    found = {}
    for path in place.journal.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if path.is_dir() and not path.suffix:
                found[path.name] = sum(file.stat().st_size for file in path.iterdir() if file.name.isdecimal())
    return found


def is_written_to(before: dict[str, int], now: dict[str, int]) -> bool:
    """The ends of the killed worker's calls are in its journal; whether they are in the store is unknown."""
    return any(now.get(name, 0) != size for name, size in before.items())


def is_put_away(before: dict[str, int], now: dict[str, int]) -> bool:
    """A dead worker's journal has been delivered and is being removed."""
    return not before.keys() <= now.keys()


def answered_and_then(place: Place, kill: Callable[[], object]) -> ClientCall:
    """A plain call, and a kill as soon as the upstream has written its whole answer. The client may have it before."""
    is_killed = threading.Event()

    def kill_when_answered(received: ClientCall) -> None:
        def look(number: int, pieces: int) -> None:
            if (number, pieces) == (received.number, 2):
                kill()
                is_killed.set()

        place.seller.when = look

    received = called(place, before=kill_when_answered)
    assert is_killed.wait(RESTARTED_S), "the upstream never wrote the whole answer"
    place.seller.when = lambda number, pieces: None
    return received


def seen_done_and_then(place: Place, kill: Callable[[], object]) -> ClientCall:
    """A stream, and a kill in the moment in which its client has seen the end."""

    def kill_when_seen(received: ClientCall) -> None:
        def look(seen: ClientCall) -> None:
            if seen is received and received.is_whole:
                place.callers.seen_piece = lambda received: None
                kill()

        place.callers.seen_piece = look

    received = called(place, is_stream=True, before=kill_when_seen)
    assert received.is_served
    return received


# ------------------------------------------------------------------------------------------------------- random times


@pytest.mark.timeout(120 + 4 * KILLS)
def test_sums_agree_after_kills_at_random_times(places: Callable[..., Place]) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    kills = {"embedded": KILLS // 3, "redis": KILLS - KILLS // 3}  # a Redis starts sooner than a Python
    side_by_side(*[partial(kill_at_random, places(kind, pause_s=0.002), kind, kills[kind], seed) for kind in STORES])


def kill_at_random(place: Place, kind: str, kills: int, seed: int) -> None:
    """Kill and restart processes, under load, for this number of kills; then compare the records."""
    killer = Killer(place, random.Random(f"{kind} {seed}"))
    place.open()
    with place.callers.at_work(lambda: place.gateway.port, count=6):
        while len(killer.killed) < kills:
            serve_some_calls(place, killer.dice.choice((0, 1, 3, 10)))
            killer.pause(0.05)
            if kind == "redis" and killer.dice.random() < 0.8:
                killer.kill_redis()
            else:
                killer.kill_workers_or_all()
        serve_some_calls(place, 10)
    ends = place.check()
    begun, served = len(place.callers.received), sum(received.is_served for received in place.callers.received)
    print(f"{kind}: {Counter(killer.killed)} killed, {begun} calls begun, {served} served, by the records: {ends}")
    assert served > len(killer.killed)
    assert ends["lost"] > 0


LIVES = 8
"""Of gateways with one worker, each with a store of its own, because after a kill each batch is written for a while."""


@pytest.mark.timeout(180)
def test_sums_agree_after_a_lone_worker_is_killed_at_a_random_time(places: Callable[..., Place]) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    dice = random.Random(seed)
    for _ in range(LIVES):
        place = places("embedded", pause_s=0.002)
        place.open(1)
        with place.callers.at_work(lambda: place.gateway.port, count=5):  # noqa: B023
            serve_some_calls(place, dice.choice((3, 20, 60)))
            time.sleep(dice.uniform(0.0, 0.15))
            if dice.random() < 0.6:
                place.kill_all()
                place.open(1)
            else:
                kill(*place.gateway.workers())
            serve_some_calls(place, 10)
        place.check()
        place.gateway.stop()


class Killer:
    """Chooses a process at random and kills it."""

    def __init__(self, place: Place, dice: random.Random) -> None:
        self.dice = dice
        self.killed: list[str] = []
        self._place = place
        self._victims: set[int] = set()
        """Workers of the gateway that runs."""

    def pause(self, most_s: float) -> None:
        time.sleep(self.dice.uniform(0.0, most_s))

    def kill_redis(self) -> None:
        self._place.redis.kill()
        self.killed.append("redis")
        if self.dice.random() < 0.1:
            self._kill_workers()
        self.pause(0.3)
        self._place.redis.restart()

    def kill_workers_or_all(self) -> None:
        if not self._kill_workers():
            self._end_gateway()
            if self.dice.random() < 0.3:
                self._place.open(is_awaited=False)
                self.pause(2.0)
                self._kill_all("at the start")
            self._place.open(on_outage=self.dice.choice(("deny", "allow")))
            self._victims.clear()

    def _kill_workers(self) -> bool:
        """One or two, if the gateway may lose any more. Whether it may."""
        room = MAX_DEATHS - len(self._victims)
        alive = [pid for pid in self._place.gateway.workers() if pid not in self._victims]
        for pid in self.dice.sample(alive, min(len(alive), room, self.dice.choice((1, 1, 2)))):
            kill(pid)
            self._victims.add(pid)
            self.killed.append("worker")
        return room > 0

    def _end_gateway(self) -> None:
        """All of it, or the supervisor alone; or in good order, which must not cost anything either."""
        match self.dice.choice(("all", "all", "supervisor", "none")):
            case "all":
                self._kill_all("all")
            case "supervisor":
                self.killed.append("supervisor")
                self._place.kill_supervisor()
            case "none":
                self._place.gateway.stop()

    def _kill_all(self, why: str) -> None:
        self.killed.extend([why] * (1 + len(self._place.gateway.workers())))
        self._place.kill_all()


def serve_some_calls(place: Place, count: int) -> None:
    """Until so many more calls have ended well."""
    received = place.callers.received
    first = len(received)
    end = time.monotonic() + RESTARTED_S
    while sum(call.is_served for call in received[first:]) < count:
        assert time.monotonic() < end, f"no more than {received[first:]} in {RESTARTED_S:g} s"
        time.sleep(0.02)


# ------------------------------------------------------------------------------------------------------------- metrics


@pytest.mark.timeout(240)
def test_metrics_agree_with_the_records_after_kills(places: Callable[..., Place]) -> None:
    side_by_side(*[partial(count_after_kills, places(kind, pause_s=0.01)) for kind in STORES])


def count_after_kills(place: Place) -> None:
    place.open()
    before: set[int] = set()
    with place.callers.at_work(lambda: place.gateway.port, count=6):
        for _ in range(MAX_DEATHS):
            serve_some_calls(place, 60)
            found = place.gateway.workers()
            victim = next((pid for pid in found if pid in before), found[0])  # the one that kept its connections
            before = {*found} - {victim}
            kill(victim)
            place.wait_until_replaced(victim)
        serve_some_calls(place, 10)
    assert place.check()["lost"] > 0
    records = [record for record in place.gateway.calls(limit=1_000_000) if record["upstream"]]
    calls = Counter((record["key"], str(record["status"])) for record in records)
    tokens = {kind: sum(record[f"{kind}_tokens"] for record in records) for kind in ("prompt", "completion")}
    counted: Counter[tuple[str, str]] = Counter()
    for name, labels, value in place.gateway.metrics():
        if name == "gateway_requests_total" and labels["upstream"]:
            counted[labels["key"], labels["status"]] += int(value)
    assert counted == calls
    assert {kind: place.gateway.metric("gateway_tokens_total", type=kind) for kind in tokens} == tokens
    answered = sum(record["status"] != 0 for record in records)
    assert place.gateway.metric("gateway_request_duration_seconds_count") == answered


# ----------------------------------------------------------------------------------------------------- what takes time


@pytest.mark.timeout(240)
def test_what_comes_right_after_a_while(places: Callable[..., Place]) -> None:
    side_by_side(
        lambda: stop_a_worker_and_let_it_go_on(places("embedded")),
        lambda: stop_a_worker_and_let_it_go_on(places("redis")),
        lambda: kill_between_worker_and_redis(places("redis")),
        lambda: kill_while_a_journal_is_put_away(places("redis"), has_arrived=False),
        lambda: kill_while_a_journal_is_put_away(places("redis"), has_arrived=True),
    )


def stop_a_worker_and_let_it_go_on(place: Place) -> None:
    """It is taken for dead, and was not: its calls are charged at their estimates, and then at the truth."""
    place.open()
    stopped, other = place.gateway.workers()
    os.kill(other, signal.SIGSTOP)  # so that these calls are where they shall be
    held = Held(place, [(True, 3), (True, 5), (False, 0), (False, 1)])
    single = Held(place, [(True, 4)], "single")
    os.kill(other, signal.SIGCONT)
    os.kill(stopped, signal.SIGSTOP)
    began = time.monotonic()
    assert called(place).is_served
    assert place.callers.call(place.gateway.port, "single").status == 429
    wait_until(lambda: place.callers.call(place.gateway.port, "single").is_served, SILENT_S + 30)
    eventually(lambda: place.gateway.calls("single")[0]["ended"] == "done")
    lost = len(held.received + single.received)
    assert place.check()["lost"] == lost  # at their estimates, and nothing is in their way
    eventually(lambda: place.gateway.metric("gateway_closed_calls_total") == lost)
    time.sleep(max(0.0, began + SILENT_S + 5 - time.monotonic()))
    place.seller.let_go()
    os.kill(stopped, signal.SIGCONT)
    held.join()
    single.join()
    assert all(received.is_served for received in held.received + single.received)
    wait_until(lambda: place.ended(held.received + single.received) == {"done"}, 30)
    assert set(place.check()) == {"done"}
    assert stopped in place.gateway.workers()


def kill_between_worker_and_redis(place: Place) -> None:
    """The only worker is killed while its draw or settlement is being sent, and while the reply is."""
    place.open(1)
    any_call = b"client-"  # its record is in the draw, and in the settlement

    # Without a kill: a draw and a settlement whose replies are lost have been executed once.
    place.proxy.lose_reply(of=any_call)
    assert place.callers.call(place.gateway.port).status == 503
    wait_until(lambda: place.callers.call(place.gateway.port).is_served, SILENT_S)
    calls = Held(place, [(False, 1)])
    place.proxy.lose_reply(of=any_call)
    place.seller.let_go()
    calls.join()
    assert set(place.check()) == {"done"}
    wait_until(lambda: place.callers.call(place.gateway.port).is_served, SILENT_S)
    # A draw that never arrives, and one whose reply is lost: nothing has been sent upstream.
    never = []
    for fault in (place.proxy.cut_request, place.proxy.lose_reply):
        with killed_on_the_wire(place):
            fault(of=any_call)
            never.append(place.callers.call(place.gateway.port))
    # The same for a settlement, which the journal has.
    for fault in (place.proxy.cut_request, place.proxy.lose_reply):
        calls = Held(place, [(False, 1)])
        with killed_on_the_wire(place):
            fault(of=any_call)
            place.seller.let_go()
            calls.join()
        assert place.ended(calls.received) == {"done"}
    # Settlements that the journal alone has, when all die.
    calls = Held(place, EVERY_POINT)
    place.proxy.hold()
    place.seller.let_go()
    calls.join()
    assert all(received.is_served for received in calls.received)  # a sick store holds no answer
    place.kill_all()
    place.proxy.cut()
    place.proxy.heal()
    place.open(1)
    assert place.ended(calls.received) == {"done"}

    place.check()
    assert not any(received.is_served or received.number in place.seller.sales for received in never)
    assert place.ended([never[0]]) == {None}


@contextlib.contextmanager
def killed_on_the_wire(place: Place) -> Iterator[None]:
    """Kill the only worker as soon as the proxy has cut its connection; its successor gets a working one."""
    (victim,) = place.gateway.workers()

    def kill_when_cut() -> None:
        with place.line_cut():
            pass
        kill(victim)

    with ThreadPoolExecutor(1) as thread:
        killed = thread.submit(kill_when_cut)
        yield
        killed.result()
    place.wait_until_replaced(victim, workers=1)
    assert called(place).is_served


def kill_while_a_journal_is_put_away(place: Place, *, has_arrived: bool) -> None:
    """A killed worker's journal is delivered, kept for a while, then retired: the worker that retires it is killed."""
    place.open(1)
    held = Held(place, EVERY_POINT)
    (victim,) = place.gateway.workers()
    kill(victim)
    held.join()
    place.wait_until_replaced(victim, workers=1)
    (heir,) = place.gateway.workers()
    place.seller.let_go()
    with place.line_cut():
        (place.proxy.lose_reply if has_arrived else place.proxy.cut_request)(of=RETIREMENT)
        assert called(place).is_served
        assert place.check() == {"lost": len(held.received), "done": 1}
    kill(heir)
    place.wait_until_replaced(heir, workers=1)
    assert called(place).is_served
    assert place.check() == {"lost": len(held.received), "done": 2}
