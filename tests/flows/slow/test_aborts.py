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
from tests.flows.gateway_process import Gateway, eventually, key, model, secret, settings

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
class ScriptedAnswer:
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


class UpstreamByCaller:
    """A scripted upstream with a behaviour for each caller, selected by the request's `user`."""

    def __init__(self) -> None:
        self.scripts: dict[str, ScriptedAnswer] = {}
        self.upstream = Scripted(always=self._perform)

    async def _perform(self, wire: Wire) -> None:
        scripted = self.scripts[wire.request.json["user"]]
        try:
            await self._say(wire, scripted)
        finally:
            scripted.has_ended = True

    async def _say(self, wire: Wire, scripted: ScriptedAnswer) -> None:
        stop = int(scripted.hold_at)
        said = scripted.events()
        if scripted.hold_at >= 0:
            await wire.write(CHUNKED + b"".join(map(chunk, said[:stop])))
        half = len(said[stop]) // 2 if scripted.hold_at > stop and stop < len(said) else 0
        if half:
            await wire.write(chunk(said[stop][:half]))
        scripted.is_under_way = True
        while not scripted.is_let_go:
            if wire.reader.at_eof():
                return
            await asyncio.sleep(0.005)
        if scripted.hold_at < 0:
            stop = 0
            await wire.write(CHUNKED)
        left = said[stop:]
        if half:
            left[0] = left[0][half:]
        await wire.write(b"".join(map(chunk, left)))
        if scripted.end == "never":
            for _ in range(10_000):
                await wire.write(chunk(event({"choices": [{"index": 0, "text": " more", "finish_reason": None}]})))
                await asyncio.sleep(0.02)
        elif scripted.end == "cut":
            wire.close()
        else:
            await wire.write(b"".join(map(chunk, scripted.rest())) + b"0\r\n\r\n")


@pytest.fixture(scope="module")
def shared_upstream() -> Iterator[UpstreamByCaller]:
    made = UpstreamByCaller()
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
def gateway(
    request: pytest.FixtureRequest,
    start_shared_gateway: StartsGateways,
    shared_upstream: UpstreamByCaller,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Gateway]:
    if request.param == "embedded":
        yield start_shared_gateway(config(shared_upstream.upstream.url))
        return
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        made = start_shared_gateway(config(shared_upstream.upstream.url, server.url))
        yield made
        made.stop()


def begin(gateway: Gateway, scripted: ScriptedAnswer, to: str, who: str = "crowd", **more: Any) -> Raw:
    """The call of this play's client, which has read as far as it will."""
    client = gateway.connect()
    body: dict[str, Any] = {"model": to, "stream": True, "user": scripted.name, "max_tokens": MAX_TOKENS}
    path = "/v1/chat/completions" if to == THINKING else "/v1/completions"
    body |= {"messages": [{"role": "user", "content": PROMPT}]} if to == THINKING else {"prompt": PROMPT}
    client.post(path, json.dumps(body | more).encode(), secret(who), "1.1", f"X-Client-Request-Id: {scripted.name}")
    return client


def read_on(client: Raw, scripted: ScriptedAnswer) -> None:
    """Until the last event before the hold that says something: of the others not all are passed on."""
    seen = [number for number, (text, _) in enumerate(scripted.texts[: max(0, int(scripted.hold_at))]) if text]
    if seen:
        client.read_until(b'"e%d"' % seen[-1])


def records(gateway: Gateway, scripts: list[ScriptedAnswer]) -> dict[str, dict[str, Any]]:
    """The one record of each of these calls, by their plays' names."""
    names = {scripted.name for scripted in scripts}
    found = [call for call in gateway.calls(limit=1000) if call["client_request_id"] in names]
    assert len(found) == len({call["client_request_id"] for call in found}), "a call is recorded twice"
    return {call["client_request_id"]: call for call in found}


def ended(gateway: Gateway, scripts: list[ScriptedAnswer]) -> dict[str, dict[str, Any]]:
    """The same, when all of them are there."""
    return eventually(lambda: len(found := records(gateway, scripts)) == len(scripts) and found, timeout_s=60)


def nobody_is_served(gateway: Gateway) -> bool:
    return gateway.metric("gateway_in_flight_requests") == 0


def crowd(shared_upstream: UpstreamByCaller, prefix: str, **more: Any) -> list[ScriptedAnswer]:
    """A play for every place at which a client may leave."""
    seed = int(os.environ.get("GATEWAY_FUZZ_SEED", "0")) or random.SystemRandom().randrange(10**9)
    print(f"GATEWAY_FUZZ_SEED={seed}")
    dice = random.Random(f"{seed} {prefix}")
    places = [-1, 0, 0.5, *itertools.chain.from_iterable((k, k + 0.5) for k in range(1, EVENTS)), EVENTS]
    scripts = [
        ScriptedAnswer(f"{prefix}-{number}", place, texts=texts(dice), **more) for number, place in enumerate(places)
    ]
    shared_upstream.scripts |= {scripted.name: scripted for scripted in scripts}
    return scripts


def leave_all(gateway: Gateway, scripts: list[ScriptedAnswer], to: str) -> None:
    """Every client reads as far as it gets, and leaves; the gateway has noticed all of it."""
    clients = [begin(gateway, scripted, to) for scripted in scripts]
    for client, scripted in zip(clients, scripts, strict=True):
        eventually(lambda scripted=scripted: scripted.is_under_way)  # type: ignore[misc]
        read_on(client, scripted)
    for client in clients:
        client.close()
    eventually(lambda: nobody_is_served(gateway))


@dataclass
class Books:
    """What the gateway shows of a key, before and after."""

    gateway: Gateway
    who: str = "crowd"

    def __post_init__(self) -> None:
        self.tokens, self.usd, _ = self._used()
        self.gone = self.gateway.metric("gateway_client_disconnects_total")
        self.unknown = self.gateway.metric("gateway_usage_unknown_total")
        self.attempts = self.gateway.metric("gateway_upstream_attempts_total", outcome="client_gone")

    def _used(self) -> tuple[int, float, float]:
        windows = self.gateway.get("/v1/key", key=self.who).json["quotas"]
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
        assert self.gateway.metric("gateway_client_disconnects_total") - self.gone == len(calls)
        assert self.gateway.metric("gateway_usage_unknown_total") - self.unknown == len(estimated)
        assert self.gateway.metric("gateway_upstream_attempts_total", outcome="client_gone") - self.attempts == len(
            calls
        )


def received(call: dict[str, Any]) -> tuple[Any, ...]:
    return call["usage_source"], call["prompt_tokens"], call["completion_tokens"]


# ------------------------------------------------------------------------------------------------------------- drain


@pytest.mark.parametrize("usage", ["last", "every"])
def test_a_drained_stream_is_charged_the_truth_wherever_its_client_left(
    gateway: Gateway, shared_upstream: UpstreamByCaller, usage: str
) -> None:
    books, scripts = Books(gateway), crowd(shared_upstream, f"{gateway.port}-drain-{usage}", usage=usage)
    leave_all(gateway, scripts, DRAINED)
    assert not records(gateway, scripts), "settled before the truth is known"
    for scripted in scripts:
        scripted.is_let_go = True
    calls = ended(gateway, scripts)
    for scripted in scripts:
        call = calls[scripted.name]
        assert received(call) == ("reported", TRUE_PROMPT_TOKENS, scripted.truth), scripted
        assert (call["ended"], call["status"], call["attempts"]) == ("client_gone", 499, 1)
    books.check(list(calls.values()))


@pytest.mark.parametrize("end", ["cut", "error"])
def test_a_drained_stream_that_fails_is_estimated(
    gateway: Gateway, shared_upstream: UpstreamByCaller, end: str
) -> None:
    books, scripts = Books(gateway), crowd(shared_upstream, f"{gateway.port}-{end}", end=end)
    leave_all(gateway, scripts, DRAINED)
    for scripted in scripts:
        scripted.is_let_go = True
    calls = ended(gateway, scripts)
    for scripted in scripts:
        source, prompt, completion = received(calls[scripted.name])
        assert (source, prompt) == ("estimated", PROMPT_TOKENS)
        assert scripted.truth <= completion <= MAX_TOKENS, scripted  # all of it was read
    books.check(list(calls.values()))


def test_a_drained_stream_that_never_ends_is_given_up(gateway: Gateway, shared_upstream: UpstreamByCaller) -> None:
    books, scripts = Books(gateway), crowd(shared_upstream, f"{gateway.port}-never", end="never")[::5]
    leave_all(gateway, scripts, LIMITED)
    for scripted in scripts:
        scripted.is_let_go = True
    calls = ended(gateway, scripts)
    for scripted in scripts:
        source, prompt, completion = received(calls[scripted.name])
        assert (source, prompt) == ("estimated", PROMPT_TOKENS)
        assert scripted.truth <= completion, scripted
    eventually(lambda: all(scripted.has_ended for scripted in scripts))  # its connection is closed
    books.check(list(calls.values()))


def test_a_silent_upstream_is_not_drained_for_ever(gateway: Gateway, shared_upstream: UpstreamByCaller) -> None:
    scripts = crowd(shared_upstream, f"{gateway.port}-silent")[:4]
    leave_all(gateway, scripts, LIMITED)
    calls = ended(gateway, scripts)  # the upstream has not continued them
    for scripted in scripts:
        source, _, completion = received(calls[scripted.name])
        assert source == "estimated"
        assert scripted.delivered() <= completion <= MAX_TOKENS


def test_a_draining_stream_keeps_its_place(gateway: Gateway, shared_upstream: UpstreamByCaller) -> None:
    (scripted,) = crowd(shared_upstream, f"{gateway.port}-place")[3:4]
    client = begin(gateway, scripted, DRAINED, "single")
    eventually(lambda: scripted.is_under_way)
    read_on(client, scripted)
    client.close()
    eventually(lambda: nobody_is_served(gateway))
    refused = gateway.complete("single", model=DRAINED, user=scripted.name)
    assert refused.refusal == (429, "requests", None, "rate_limit_exceeded")
    scripted.is_let_go = True
    assert received(ended(gateway, [scripted])[scripted.name])[0] == "reported"
    assert gateway.complete("single", model="unknown").status == 404
    again = ScriptedAnswer(f"{scripted.name}-again", 0, is_let_go=True, texts=[(" a", 1)])
    shared_upstream.scripts[again.name] = again
    with begin(gateway, again, DRAINED, "single") as other:
        assert other.read_head().status == 200
        assert other.read_chunks().endswith(b"data: [DONE]\n\n")


def test_a_client_that_read_slowly_does_not_hold_up_the_drain(
    gateway: Gateway, shared_upstream: UpstreamByCaller
) -> None:
    """It has left with megabytes unread: its back-pressure must not stay when it is gone."""
    name = f"{gateway.port}-slow"
    scripted = shared_upstream.scripts[name] = ScriptedAnswer(
        name, 0, is_let_go=True, texts=[(" word" * 2000, 2000)] * 1000
    )
    client = begin(gateway, scripted, DRAINED)
    client.read_head()
    time.sleep(0.3)
    assert not scripted.has_ended, "the upstream was not held back"
    client.close()
    assert received(ended(gateway, [scripted])[name]) == ("reported", TRUE_PROMPT_TOKENS, scripted.truth)


# ------------------------------------------------------------------------------------------------------------ cancel


def test_a_cancelled_stream_is_charged_what_was_delivered_at_least(
    gateway: Gateway, shared_upstream: UpstreamByCaller
) -> None:
    books, scripts = Books(gateway), crowd(shared_upstream, f"{gateway.port}-cancel")
    leave_all(gateway, scripts, CANCELLED)
    calls = ended(gateway, scripts)
    for scripted in scripts:
        call = calls[scripted.name]
        source, prompt, completion = received(call)
        assert (source, prompt, call["status"], call["truncated"]) == ("estimated", PROMPT_TOKENS, 499, True)
        assert scripted.delivered() <= completion <= MAX_TOKENS, scripted
    eventually(lambda: all(scripted.has_ended for scripted in scripts))  # the upstream has heard of it
    books.check(list(calls.values()))


def test_what_was_counted_on_the_way_is_a_lower_bound(gateway: Gateway, shared_upstream: UpstreamByCaller) -> None:
    books, scripts = Books(gateway), crowd(shared_upstream, f"{gateway.port}-so-far", usage="every")
    leave_all(gateway, scripts, CANCELLED)
    calls = ended(gateway, scripts)
    for scripted in scripts:
        source, prompt, completion = received(calls[scripted.name])
        assert (source, prompt) == ("estimated", TRUE_PROMPT_TOKENS if scripted.hold_at >= 1 else PROMPT_TOKENS)
        assert scripted.delivered() <= completion <= MAX_TOKENS, scripted
    books.check(list(calls.values()))


def test_a_model_that_thinks_unseen_is_charged_all_that_was_reserved(
    gateway: Gateway, shared_upstream: UpstreamByCaller
) -> None:
    scripts = crowd(shared_upstream, f"{gateway.port}-thinks")[:3]
    leave_all(gateway, scripts, THINKING)
    for call in ended(gateway, scripts).values():
        assert received(call)[::2] == ("estimated", MAX_TOKENS)
    (quiet,) = crowd(shared_upstream, f"{gateway.port}-quiet")[4:5]
    client = begin(gateway, quiet, THINKING, reasoning_effort="none")
    eventually(lambda: quiet.is_under_way)
    read_on(client, quiet)
    client.close()
    assert quiet.delivered() <= received(ended(gateway, [quiet])[quiet.name])[2] < MAX_TOKENS


# ------------------------------------------------------------------------------------------------------- other moments


@pytest.mark.parametrize("to", [DRAINED, CANCELLED])
def test_a_client_that_leaves_just_when_its_answer_ends_is_charged_once(
    gateway: Gateway, shared_upstream: UpstreamByCaller, to: str
) -> None:
    before = Books(gateway)
    scripts = crowd(shared_upstream, f"{gateway.port}-end-{to}")
    for scripted in scripts:
        scripted.hold_at, scripted.is_let_go = EVENTS, True
    clients = [begin(gateway, scripted, to) for scripted in scripts]
    for client, scripted in zip(clients, scripts, strict=True):
        read_on(client, scripted)
        client.close()
    calls = ended(gateway, scripts)
    for scripted in scripts:
        source, _, completion = received(calls[scripted.name])
        assert completion == scripted.truth if source == "reported" else completion >= scripted.truth, scripted
        assert source == "reported" or to == CANCELLED, scripted
    charged = sum(call["prompt_tokens"] + call["completion_tokens"] for call in calls.values())
    eventually(lambda: before.settled() == charged)
    assert records(gateway, scripts).keys() == calls.keys()


def test_a_client_that_leaves_before_anything_was_sent_is_charged_nothing(
    gateway: Gateway, shared_upstream: UpstreamByCaller
) -> None:
    before = Books(gateway)
    scripts = [ScriptedAnswer(f"{gateway.port}-nowhere-{number}", -1) for number in range(5)]
    clients = [begin(gateway, scripted, NOWHERE) for scripted in scripts]
    for client, pause_s in zip(clients, (0, 0.02, 0.05, 0.1, 0.2), strict=True):  # around the pauses between attempts
        time.sleep(pause_s)
        client.close()
    eventually(lambda: nobody_is_served(gateway))
    for call in records(gateway, scripts).values():  # one that left while it was admitted may have none
        assert (*received(call), call["cost_usd"]) == ("none", 0, 0, 0)
    assert before.settled() == 0


@pytest.mark.parametrize("usage", ["never", "zero"])
def test_what_is_not_reported_or_said_to_be_nothing_is_estimated(
    gateway: Gateway, shared_upstream: UpstreamByCaller, usage: str
) -> None:
    before = Books(gateway)
    scripts = [
        scripted
        for scripted in crowd(shared_upstream, f"{gateway.port}-says-{usage}", usage=usage)[:6]
        if scripted.truth
    ]
    for scripted in scripts:
        scripted.is_let_go = True
        with begin(gateway, scripted, CANCELLED) as client:
            assert client.read_head().status == 200
            assert client.read_chunks().endswith(b"data: [DONE]\n\n")
    for scripted in scripts:
        call = ended(gateway, scripts)[scripted.name]
        source, prompt, completion = received(call)
        assert (source, prompt, call["ended"], call["truncated"]) == ("estimated", PROMPT_TOKENS, "done", False)
        assert scripted.truth <= completion <= MAX_TOKENS, scripted
    assert gateway.metric("gateway_usage_unknown_total") - before.unknown == len(scripts)


# ------------------------------------------------------------------------------------------------------------ the end


def test_term_waits_for_what_is_drained_as_long_as_it_waits_at_all(
    start_gateway: StartsGateways, shared_upstream: UpstreamByCaller
) -> None:
    gateway = start_gateway(config(shared_upstream.upstream.url, drain_timeout_s=5))
    scripts = crowd(shared_upstream, f"{gateway.port}-term")[::4]
    let_go = scripts[::2]
    leave_all(gateway, scripts, DRAINED)
    gateway.kill(signal.SIGTERM)
    time.sleep(0.3)
    for scripted in let_go:
        scripted.is_let_go = True
    assert gateway.wait() == 0
    again = start_gateway(gateway.config)
    calls = ended(again, scripts)
    for scripted in scripts:
        source, _, completion = received(calls[scripted.name])
        if scripted in let_go:
            assert (source, completion) == ("reported", scripted.truth)
        else:
            assert source == "estimated"
            assert scripted.delivered() <= completion <= MAX_TOKENS
    assert {call["ended"] for call in calls.values()} == {"client_gone"}
    assert all(window["reserved"] == 0 for window in again.get("/v1/key", key="crowd").json["quotas"])


def test_a_worker_killed_while_it_drains_leaves_lost_calls(gateway: Gateway, shared_upstream: UpstreamByCaller) -> None:
    before = Books(gateway)
    scripts = crowd(shared_upstream, f"{gateway.port}-killed")[::6]
    leave_all(gateway, scripts, DRAINED)
    (worker,) = gateway.workers()
    os.kill(worker, signal.SIGKILL)
    calls = ended(gateway, scripts)
    for call in calls.values():
        assert (call["ended"], *received(call)) == ("lost", "estimated", PROMPT_TOKENS, MAX_TOKENS)
    eventually(lambda: before.settled() == len(scripts) * (PROMPT_TOKENS + MAX_TOKENS))
