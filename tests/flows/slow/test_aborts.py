"""Clients that leave a stream at every event: what the call is charged is the upstream's truth, or marked, and never
less than what was delivered. In both modes of `on_disconnect`, and in both stores.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.conftest import StartsGateways
from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import CHUNKED, Scripted, Wire, chunk, dead_port, event
from tests.flows.client import Raw
from tests.flows.house import Gateway, eventually, key, model, secret, settings

EVENTS = 12
MAX_TOKENS = 120
PROMPT, PROMPT_TOKENS = "x" * 40, 10
TRUE_PROMPT_TOKENS = 17
DRAIN_LIMIT_S = 1.0

WORDS = [" a", " I", " of", " the", " x", " word", " seven", " Ab"]
OTHERS = [" 7", " 42", ",", "!", ";", "(", "中", "é", "あ", "😀", ".\n", '"', "\\", "\t}", " мир"]

DRAINED, CANCELLED, LIMITED, THINKING, NOWHERE = "drained", "cancelled", "limited", "o3-mini", "nowhere"
"""Models, each behind an upstream of its own settings."""
USD_PRICE = {"input": 1, "output": 2}


@dataclass
class Play:
    """One streamed answer, as it was written down beforehand; it is held where its client is to leave."""

    name: str
    hold_at: float
    """Behind so many events; a half is inside the next one. Below 0: before the head."""
    usage: str = "last"
    """Where it is reported: `last`, in a chunk of its own; `every` chunk has the count so far; `never`; or `zero`: as
    nothing at all."""
    end: str = "done"
    """`done`, `cut`, `error` or `never`."""
    texts: list[tuple[str, int]] = field(default_factory=list)
    """What each event brings, and how many tokens that is."""
    is_let_go: bool = False
    is_under_way: bool = False
    has_ended: bool = False

    def delivered(self) -> int:
        """Tokens of the events before the hold."""
        return sum(tokens for _, tokens in self.texts[: max(0, int(self.hold_at))])

    @property
    def truth(self) -> int:
        return sum(tokens for _, tokens in self.texts)

    def events(self) -> list[bytes]:
        said, found = 0, []
        for number, (text, tokens) in enumerate(self.texts):
            said += tokens
            choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": None}
            report = _report(said) if self.usage == "every" else None
            found.append(event({"id": f"e{number}", "choices": [choice], "usage": report}))
        return found

    def rest(self) -> list[bytes]:
        """What follows the events."""
        if self.end == "error":
            return [event({"error": {"message": "overloaded", "type": "server_error"}})]
        last = {"index": 0, "text": "", "logprobs": None, "finish_reason": "stop"}
        finished, done = event({"choices": [last], "usage": None}), event("[DONE]")
        if self.usage == "never":
            return [finished, done]
        report = {"prompt_tokens": 0, "completion_tokens": 0} if self.usage == "zero" else _report(self.truth)
        return [finished, event({"choices": [], "usage": report}), done]


def _report(completion: int) -> dict[str, int]:
    total = TRUE_PROMPT_TOKENS + completion
    return {"prompt_tokens": TRUE_PROMPT_TOKENS, "completion_tokens": completion, "total_tokens": total}


def texts(dice: random.Random) -> list[tuple[str, int]]:
    """Events that pack 0 to 7 tokens, each of which a reader would call one."""
    packed = []
    for _ in range(EVENTS):
        count = dice.randint(0, 7)
        tokens = dice.choices(WORDS + OTHERS, k=count)
        packed.append(("".join(tokens), count))
    return packed


class Theatre:
    """A scripted upstream with a behaviour for each caller, selected by the request's `user`."""

    def __init__(self) -> None:
        self.plays: dict[str, Play] = {}
        self.upstream = Scripted(always=self._perform)

    async def _perform(self, wire: Wire) -> None:
        play = self.plays[wire.request.json["user"]]
        try:
            await self._say(wire, play)
        finally:
            play.has_ended = True

    async def _say(self, wire: Wire, play: Play) -> None:
        stop = int(play.hold_at)
        said = play.events()
        if play.hold_at >= 0:
            await wire.write(CHUNKED + b"".join(map(chunk, said[:stop])))
        half = len(said[stop]) // 2 if play.hold_at > stop and stop < len(said) else 0
        if half:
            await wire.write(chunk(said[stop][:half]))
        play.is_under_way = True
        while not play.is_let_go:
            if wire.reader.at_eof():
                return
            await asyncio.sleep(0.005)
        if play.hold_at < 0:
            stop = 0
            await wire.write(CHUNKED)
        left = said[stop:]
        if half:
            left[0] = left[0][half:]
        await wire.write(b"".join(map(chunk, left)))
        if play.end == "never":
            for _ in range(10_000):
                await wire.write(chunk(event({"choices": [{"index": 0, "text": " more", "finish_reason": None}]})))
                await asyncio.sleep(0.02)
        elif play.end == "cut":
            wire.close()
        else:
            await wire.write(b"".join(map(chunk, play.rest())) + b"0\r\n\r\n")


@pytest.fixture(scope="module")
def theatre() -> Iterator[Theatre]:
    made = Theatre()
    with made.upstream:
        yield made


def config(url: str, store: str | None = None, **server: Any) -> dict[str, Any]:
    def upstream(**more: Any) -> dict[str, Any]:
        return {"base_url": url, **more}

    def one(name: str, endpoint: str = "completions") -> dict[str, Any]:
        return model(endpoint, upstream=name, price=USD_PRICE)

    quotas = [{"tokens": 10**9, "per": "day"}, {"usd": 10**6, "per": "month"}, {"tokens": 10**9, "per": 10**6}]
    return settings(
        url,
        upstreams={
            "drains": upstream(on_disconnect="drain", drain_limit_s=30),
            "limited": upstream(on_disconnect="drain", drain_limit_s=DRAIN_LIMIT_S),
            "cancels": upstream(),
            "nowhere": {"base_url": f"http://127.0.0.1:{dead_port()}/v1"},
        },
        models={
            DRAINED: one("drains"), LIMITED: one("limited"), CANCELLED: one("cancels"),
            THINKING: one("cancels", "chat"), NOWHERE: one("nowhere"),
        },
        keys=[key("crowd", quotas=quotas), key("single", max_parallel=1), key("alice")],
        server=server,
        **({"store": {"url": store}} if store else {}),
    )  # fmt: skip


@pytest.fixture(scope="module", params=["embedded", "redis"])
def house(
    request: pytest.FixtureRequest, gateways: StartsGateways, theatre: Theatre, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    if request.param == "embedded":
        yield gateways(config(theatre.upstream.url))
        return
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        made = gateways(config(theatre.upstream.url, server.url))
        yield made
        made.stop()


def begin(house: Gateway, play: Play, to: str, who: str = "crowd", **more: Any) -> Raw:
    """The call of this play's client, which has read as far as it will."""
    client = house.connect()
    body: dict[str, Any] = {"model": to, "stream": True, "user": play.name, "max_tokens": MAX_TOKENS}
    path = "/v1/chat/completions" if to == THINKING else "/v1/completions"
    body |= {"messages": [{"role": "user", "content": PROMPT}]} if to == THINKING else {"prompt": PROMPT}
    client.post(path, json.dumps(body | more).encode(), secret(who), "1.1", f"X-Client-Request-Id: {play.name}")
    return client


def read_on(client: Raw, play: Play) -> None:
    """Until the last event before the hold that says something: of the others not all are passed on."""
    seen = [number for number, (text, _) in enumerate(play.texts[: max(0, int(play.hold_at))]) if text]
    if seen:
        client.read_until(b'"e%d"' % seen[-1])


def records(house: Gateway, plays: list[Play]) -> dict[str, dict[str, Any]]:
    """The one record of each of these calls, by their plays' names."""
    names = {play.name for play in plays}
    found = [call for call in house.calls(limit=1000) if call["client_request_id"] in names]
    assert len(found) == len({call["client_request_id"] for call in found}), "a call is recorded twice"
    return {call["client_request_id"]: call for call in found}


def ended(house: Gateway, plays: list[Play]) -> dict[str, dict[str, Any]]:
    """The same, when all of them are there."""
    return eventually(lambda: len(found := records(house, plays)) == len(plays) and found, timeout_s=60)


def nobody_is_served(house: Gateway) -> bool:
    return house.metric("gateway_in_flight_requests") == 0


def crowd(theatre: Theatre, prefix: str, **more: Any) -> list[Play]:
    """A play for every place at which a client may leave."""
    seed = int(os.environ.get("GATEWAY_FUZZ_SEED", "0")) or random.SystemRandom().randrange(10**9)
    print(f"GATEWAY_FUZZ_SEED={seed}")
    dice = random.Random(f"{seed} {prefix}")
    places = [-1, 0, 0.5, *itertools.chain.from_iterable((k, k + 0.5) for k in range(1, EVENTS)), EVENTS]
    plays = [Play(f"{prefix}-{number}", place, texts=texts(dice), **more) for number, place in enumerate(places)]
    theatre.plays |= {play.name: play for play in plays}
    return plays


def leave_all(house: Gateway, plays: list[Play], to: str) -> None:
    """Every client reads as far as it gets, and leaves; the gateway has noticed all of it."""
    clients = [begin(house, play, to) for play in plays]
    for client, play in zip(clients, plays, strict=True):
        eventually(lambda play=play: play.is_under_way)  # type: ignore[misc]
        read_on(client, play)
    for client in clients:
        client.close()
    eventually(lambda: nobody_is_served(house))


@dataclass
class Books:
    """What the gateway shows of a key, before and after."""

    house: Gateway
    who: str = "crowd"

    def __post_init__(self) -> None:
        self.tokens, self.usd, _ = self._used()
        self.gone = self.house.metric("gateway_client_disconnects_total")
        self.unknown = self.house.metric("gateway_usage_unknown_total")
        self.attempts = self.house.metric("gateway_upstream_attempts_total", outcome="client_gone")

    def _used(self) -> tuple[int, float, float]:
        windows = self.house.get("/v1/key", key=self.who).json["quotas"]
        found = {(window["unit"], window["per"]): window for window in windows}
        reserved = sum(window["reserved"] for window in windows)
        return found["tokens", "day"]["used"], found["usd", "month"]["used"], reserved

    def settled(self) -> int | None:
        """Tokens that were charged since; None as long as something is reserved."""
        tokens, _, reserved = self._used()
        return None if reserved else tokens - self.tokens

    def check(self, calls: list[dict[str, Any]]) -> None:
        """Every window, record and counter says the same of these calls."""
        tokens, usd, reserved = self._used()
        assert reserved == 0
        assert tokens - self.tokens == sum(call["prompt_tokens"] + call["completion_tokens"] for call in calls)
        assert usd - self.usd == pytest.approx(sum(call["cost_usd"] for call in calls), abs=1e-12)
        estimated = [call for call in calls if call["usage_source"] == "estimated"]
        assert self.house.metric("gateway_client_disconnects_total") - self.gone == len(calls)
        assert self.house.metric("gateway_usage_unknown_total") - self.unknown == len(estimated)
        assert self.house.metric("gateway_upstream_attempts_total", outcome="client_gone") - self.attempts == len(calls)


def told(call: dict[str, Any]) -> tuple[Any, ...]:
    return call["usage_source"], call["prompt_tokens"], call["completion_tokens"]


# ------------------------------------------------------------------------------------------------------------- drain


@pytest.mark.parametrize("usage", ["last", "every"])
def test_a_drained_stream_is_charged_the_truth_wherever_its_client_left(
    house: Gateway, theatre: Theatre, usage: str
) -> None:
    books, plays = Books(house), crowd(theatre, f"{house.port}-drain-{usage}", usage=usage)
    leave_all(house, plays, DRAINED)
    assert not records(house, plays), "settled before the truth is known"
    for play in plays:
        play.is_let_go = True
    calls = ended(house, plays)
    for play in plays:
        call = calls[play.name]
        assert told(call) == ("reported", TRUE_PROMPT_TOKENS, play.truth), play
        assert (call["ended"], call["status"], call["attempts"]) == ("client_gone", 499, 1)
    books.check(list(calls.values()))


@pytest.mark.parametrize("end", ["cut", "error"])
def test_a_drained_stream_that_fails_is_estimated(house: Gateway, theatre: Theatre, end: str) -> None:
    books, plays = Books(house), crowd(theatre, f"{house.port}-{end}", end=end)
    leave_all(house, plays, DRAINED)
    for play in plays:
        play.is_let_go = True
    calls = ended(house, plays)
    for play in plays:
        source, prompt, completion = told(calls[play.name])
        assert (source, prompt) == ("estimated", PROMPT_TOKENS)
        assert play.truth <= completion <= MAX_TOKENS, play  # all of it was read
    books.check(list(calls.values()))


def test_a_drained_stream_that_never_ends_is_given_up(house: Gateway, theatre: Theatre) -> None:
    books, plays = Books(house), crowd(theatre, f"{house.port}-never", end="never")[::5]
    leave_all(house, plays, LIMITED)
    for play in plays:
        play.is_let_go = True
    calls = ended(house, plays)
    for play in plays:
        source, prompt, completion = told(calls[play.name])
        assert (source, prompt) == ("estimated", PROMPT_TOKENS)
        assert play.truth <= completion, play
    eventually(lambda: all(play.has_ended for play in plays))  # its connection is closed
    books.check(list(calls.values()))


def test_a_silent_upstream_is_not_drained_for_ever(house: Gateway, theatre: Theatre) -> None:
    plays = crowd(theatre, f"{house.port}-silent")[:4]
    leave_all(house, plays, LIMITED)
    calls = ended(house, plays)  # the upstream has not continued them
    for play in plays:
        source, _, completion = told(calls[play.name])
        assert source == "estimated"
        assert play.delivered() <= completion <= MAX_TOKENS


def test_a_draining_stream_keeps_its_place(house: Gateway, theatre: Theatre) -> None:
    (play,) = crowd(theatre, f"{house.port}-place")[3:4]
    client = begin(house, play, DRAINED, "single")
    eventually(lambda: play.is_under_way)
    read_on(client, play)
    client.close()
    eventually(lambda: nobody_is_served(house))
    refused = house.complete("single", model=DRAINED, user=play.name)
    assert refused.told == (429, "requests", None, "rate_limit_exceeded")
    play.is_let_go = True
    assert told(ended(house, [play])[play.name])[0] == "reported"
    assert house.complete("single", model="unknown").status == 404
    again = Play(f"{play.name}-again", 0, is_let_go=True, texts=[(" a", 1)])
    theatre.plays[again.name] = again
    with begin(house, again, DRAINED, "single") as other:
        assert other.read_head().status == 200
        assert other.read_chunks().endswith(b"data: [DONE]\n\n")


def test_a_client_that_read_slowly_does_not_hold_up_the_drain(house: Gateway, theatre: Theatre) -> None:
    """It has left with megabytes unread: its back-pressure must not stay when it is gone."""
    name = f"{house.port}-slow"
    play = theatre.plays[name] = Play(name, 0, is_let_go=True, texts=[(" word" * 2000, 2000)] * 1000)
    client = begin(house, play, DRAINED)
    client.read_head()
    time.sleep(0.3)
    assert not play.has_ended, "the upstream was not held back"
    client.close()
    assert told(ended(house, [play])[name]) == ("reported", TRUE_PROMPT_TOKENS, play.truth)


# ------------------------------------------------------------------------------------------------------------ cancel


def test_a_cancelled_stream_is_charged_what_was_delivered_at_least(house: Gateway, theatre: Theatre) -> None:
    books, plays = Books(house), crowd(theatre, f"{house.port}-cancel")
    leave_all(house, plays, CANCELLED)
    calls = ended(house, plays)
    for play in plays:
        call = calls[play.name]
        source, prompt, completion = told(call)
        assert (source, prompt, call["status"], call["truncated"]) == ("estimated", PROMPT_TOKENS, 499, True)
        assert play.delivered() <= completion <= MAX_TOKENS, play
    eventually(lambda: all(play.has_ended for play in plays))  # the upstream has heard of it
    books.check(list(calls.values()))


def test_what_was_counted_on_the_way_is_a_lower_bound(house: Gateway, theatre: Theatre) -> None:
    books, plays = Books(house), crowd(theatre, f"{house.port}-so-far", usage="every")
    leave_all(house, plays, CANCELLED)
    calls = ended(house, plays)
    for play in plays:
        source, prompt, completion = told(calls[play.name])
        assert (source, prompt) == ("estimated", TRUE_PROMPT_TOKENS if play.hold_at >= 1 else PROMPT_TOKENS)
        assert play.delivered() <= completion <= MAX_TOKENS, play
    books.check(list(calls.values()))


def test_a_model_that_thinks_unseen_is_charged_all_that_was_reserved(house: Gateway, theatre: Theatre) -> None:
    plays = crowd(theatre, f"{house.port}-thinks")[:3]
    leave_all(house, plays, THINKING)
    for call in ended(house, plays).values():
        assert told(call)[::2] == ("estimated", MAX_TOKENS)
    (quiet,) = crowd(theatre, f"{house.port}-quiet")[4:5]
    client = begin(house, quiet, THINKING, reasoning_effort="none")
    eventually(lambda: quiet.is_under_way)
    read_on(client, quiet)
    client.close()
    assert quiet.delivered() <= told(ended(house, [quiet])[quiet.name])[2] < MAX_TOKENS


# ------------------------------------------------------------------------------------------------------- other moments


@pytest.mark.parametrize("to", [DRAINED, CANCELLED])
def test_a_client_that_leaves_just_when_its_answer_ends_is_charged_once(
    house: Gateway, theatre: Theatre, to: str
) -> None:
    before = Books(house)
    plays = crowd(theatre, f"{house.port}-end-{to}")
    for play in plays:
        play.hold_at, play.is_let_go = EVENTS, True
    clients = [begin(house, play, to) for play in plays]
    for client, play in zip(clients, plays, strict=True):
        read_on(client, play)
        client.close()
    calls = ended(house, plays)
    for play in plays:
        source, _, completion = told(calls[play.name])
        assert completion == play.truth if source == "reported" else completion >= play.truth, play
        assert source == "reported" or to == CANCELLED, play
    charged = sum(call["prompt_tokens"] + call["completion_tokens"] for call in calls.values())
    eventually(lambda: before.settled() == charged)
    assert records(house, plays).keys() == calls.keys()


def test_a_client_that_leaves_before_anything_was_sent_is_charged_nothing(house: Gateway, theatre: Theatre) -> None:
    before = Books(house)
    plays = [Play(f"{house.port}-nowhere-{number}", -1) for number in range(5)]
    clients = [begin(house, play, NOWHERE) for play in plays]
    for client, pause_s in zip(clients, (0, 0.02, 0.05, 0.1, 0.2), strict=True):  # around the pauses between attempts
        time.sleep(pause_s)
        client.close()
    eventually(lambda: nobody_is_served(house))
    for call in records(house, plays).values():  # one that left while it was admitted may have none
        assert (*told(call), call["cost_usd"]) == ("none", 0, 0, 0)
    assert before.settled() == 0


@pytest.mark.parametrize("usage", ["never", "zero"])
def test_what_is_not_reported_or_said_to_be_nothing_is_estimated(house: Gateway, theatre: Theatre, usage: str) -> None:
    before = Books(house)
    plays = [play for play in crowd(theatre, f"{house.port}-says-{usage}", usage=usage)[:6] if play.truth]
    for play in plays:
        play.is_let_go = True
        with begin(house, play, CANCELLED) as client:
            assert client.read_head().status == 200
            assert client.read_chunks().endswith(b"data: [DONE]\n\n")
    for play in plays:
        call = ended(house, plays)[play.name]
        source, prompt, completion = told(call)
        assert (source, prompt, call["ended"], call["truncated"]) == ("estimated", PROMPT_TOKENS, "done", False)
        assert play.truth <= completion <= MAX_TOKENS, play
    assert house.metric("gateway_usage_unknown_total") - before.unknown == len(plays)


# ------------------------------------------------------------------------------------------------------------ the end


def test_term_waits_for_what_is_drained_as_long_as_it_waits_at_all(gateway: StartsGateways, theatre: Theatre) -> None:
    house = gateway(config(theatre.upstream.url, drain_timeout_s=5))
    plays = crowd(theatre, f"{house.port}-term")[::4]
    let_go = plays[::2]
    leave_all(house, plays, DRAINED)
    house.kill(signal.SIGTERM)
    time.sleep(0.3)
    for play in let_go:
        play.is_let_go = True
    assert house.wait() == 0
    again = gateway(house.config)
    calls = ended(again, plays)
    for play in plays:
        source, _, completion = told(calls[play.name])
        if play in let_go:
            assert (source, completion) == ("reported", play.truth)
        else:
            assert source == "estimated"
            assert play.delivered() <= completion <= MAX_TOKENS
    assert {call["ended"] for call in calls.values()} == {"client_gone"}
    assert all(window["reserved"] == 0 for window in again.get("/v1/key", key="crowd").json["quotas"])


def test_a_worker_killed_while_it_drains_leaves_lost_calls(house: Gateway, theatre: Theatre) -> None:
    before = Books(house)
    plays = crowd(theatre, f"{house.port}-killed")[::6]
    leave_all(house, plays, DRAINED)
    (worker,) = house.workers()
    os.kill(worker, signal.SIGKILL)
    calls = ended(house, plays)
    for call in calls.values():
        assert (call["ended"], *told(call)) == ("lost", "estimated", PROMPT_TOKENS, MAX_TOKENS)
    eventually(lambda: before.settled() == len(plays) * (PROMPT_TOKENS + MAX_TOKENS))
