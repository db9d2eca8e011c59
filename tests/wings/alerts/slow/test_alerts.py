"""Quota alerts to an operator: one at 80 % and one at 100 % of each quota, from one worker of several."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes import scripted
from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import Authority, Scripted, dead_port
from tests.flows.client import Answer
from tests.flows.crowd import statuses
from tests.flows.gateway_process import COMPLETIONS, Gateway, eventually, key, model, run, secret, settings
from tests.flows.steering import Operator, until_all_know
from tests.flows.test_quota import Under, held, used
from tests.wings.alerts.test_mail import Starts, start

__all__ = ["start"]

TOKEN = "T0KEN-that-nobody-may-see"
TAKEN = scripted.answer(b"ok")
PRICE = {"input": 1.50, "output": 2.00}


class Receiver(Scripted):
    """Where alerts are posted."""

    def __init__(self, *script: scripted.Behaviour, **more: Any) -> None:
        super().__init__(*script, always=TAKEN, prefix=f"/services/{TOKEN}", **more)

    @property
    def received(self) -> list[dict[str, Any]]:
        """What was posted, attempts that were not taken among it."""
        return [request.json for request in list(self.requests)]

    def levels(self, **of: Any) -> list[int]:
        return sorted(each["level"] for each in self.received if of.items() <= each.items())


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


KEYS = [
    key("watched", team="crew", quotas=[{"requests": 1, "per": "day"}], on_exceeded="shadow"),
    key("refused", quotas=[{"tokens": 100, "per": "day"}]),
    key("rated", quotas=[{"requests": 2, "per": "hour"}, {"requests": 2, "per": 86_400}]),
    *[key(f"last-{number}", quotas=[{"requests": 1, "per": "day"}]) for number in range(3)],
]


@pytest.fixture(scope="module")
def post_box() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, post_box: Receiver) -> Gateway:
    """A gateway shared by the tests that only read alerts."""
    teams = {"crew": {"quotas": [{"usd": 0.00002, "per": "month", "model": "gpt-*"}]}}
    return start_shared_gateway(
        alerting(shared_upstream, post_box.url, *KEYS, teams=teams, store={"namespace": "acme"})
    )


def alerting(upstream: ScriptedUpstream, webhook: str, *keys: Any, **changes: Any) -> dict[str, Any]:
    models = {COMPLETIONS: model("completions", price=PRICE)}
    return settings(upstream.url, keys=list(keys), models=models, alerts={"webhook": webhook}, **changes)


def daily(limit: int, unit: str = "requests", **more: Any) -> dict[str, Any]:
    return {unit: limit, "per": "day", **more}


def lines(*gateways: Gateway) -> list[str]:
    """What the logs say of quotas."""
    return [line for gateway in gateways for line in gateway.stderr.splitlines() if "quota alert: " in line]


def spend(gateway: Gateway, count: int, who: str = "alice") -> None:
    for _ in range(count):
        assert gateway.complete(who).status == 200


def has_looked(gateway: Gateway, who: str, webhook: Receiver) -> None:
    """Wait until all earlier alerts have been sent: the alert of a quota that is used up now has arrived."""
    spend(gateway, 1, who)
    eventually(lambda: webhook.levels(key=who) == [80, 100])


def check_secrets(*gateways: Gateway) -> None:
    for gateway in gateways:
        assert TOKEN not in gateway.stderr + gateway.stdout


def crowd(gateways: Sequence[Gateway], who: str, count: int) -> Counter[int]:
    """So many calls at once, to each gateway in turn; how often each status was the answer."""
    body = {"model": COMPLETIONS, "prompt": "Hi", "max_tokens": 10}
    ports = [gateways[number % len(gateways)].port for number in range(count)]
    return Counter(statuses([(port, "/v1/completions", secret(who), body) for port in ports], 2))


@pytest.mark.parametrize("where", ["two workers", "two gateways on one Redis"])
def test_parallel_calls_cross_both_levels_and_each_is_sent_once(
    start_gateway: StartsGateways,
    upstream: ScriptedUpstream,
    receiver: Receiver,
    request: pytest.FixtureRequest,
    where: str,
) -> None:
    upstream.answer_with(always=used(10, 10))
    quotas = [daily(50), daily(1050, "tokens"), {"usd": 0.00175, "per": "month", "model": "gpt-*"}]
    config = alerting(
        upstream, receiver.url, key("alice", team="crew", quotas=quotas), key("last", quotas=[daily(1)]),
        teams={"crew": {"quotas": [daily(55)]}}, quotas=[daily(60)], server={"workers": 2},
    )  # fmt: skip
    gateways = []
    if where == "two workers":
        gateways = [start_gateway(config)]
    else:
        redis: RedisServer = request.getfixturevalue("redis_server")
        gateways = [start_gateway({**config, "store": {"url": redis.url, "namespace": "acme"}}) for _ in range(2)]
    assert crowd(gateways, "alice", 150) == {200: 50, 429: 100}
    has_looked(gateways[-1], "last", receiver)
    eventually(lambda: len(receiver.received) >= 9)
    received = Counter((each["scope"], each["unit"], each["level"]) for each in receiver.received)
    assert received == Counter([
        ("key:alice", "requests", 80), ("key:alice", "requests", 100), ("key:alice", "tokens", 80),
        ("key:alice", "usd", 80), ("key:alice", "usd", 100), ("team:crew", "requests", 80),
        ("gateway", "requests", 80), ("key:last", "requests", 80), ("key:last", "requests", 100),
    ])  # fmt: skip
    assert len(lines(*gateways)) == 9
    assert sum(gateway.metric("gateway_quota_alerts_total") for gateway in gateways) == 9
    whose: list[tuple[dict[str, str], float]] = [
        ({"key": "alice", "team": "", "unit": "requests", "per": "day", "level": "100"}, 1),
        ({"key": "", "team": "crew", "unit": "requests", "per": "day", "level": "80"}, 1),
        ({"key": "", "team": "", "unit": "requests", "per": "day", "level": "80"}, 1),
        ({"key": "alice", "team": "", "unit": "usd", "per": "month", "level": "80"}, 1),
    ]
    for labels, number in whose:
        assert sum(gateway.metric("gateway_quota_alerts_total", **labels) for gateway in gateways) == number
    check_secrets(*gateways)


def test_what_is_posted(gateway: Gateway, upstream: ScriptedUpstream, post_box: Receiver) -> None:
    upstream.answer_with(always=used(10, 5))
    spend(gateway, 1, "watched")
    eventually(lambda: post_box.levels(key="watched") == post_box.levels(team="crew", key=None) == [80, 100])
    by_scope = {(each["scope"], each["level"]): each for each in post_box.received}
    posted = by_scope["team:crew", 100]
    assert next(iter(posted)) == "text"
    month, day = time.strftime("%Y-%m", time.gmtime()), time.strftime("%Y-%m-%d", time.gmtime())
    assert posted["text"] == (
        f"100 % of a quota: team crew used $0.000025 of $0.00002 for models gpt-* in the month {month}. "
        f"It starts anew at {posted['resets_at']}."
    )
    facts = (
        "type",
        "key",
        "team",
        "unit",
        "per",
        "model",
        "limit",
        "used",
        "reserved",
        "enforced",
        "window",
        "gateway",
    )
    assert [posted[name] for name in facts] == [
        "quota_alert", None, "crew", "usd", "month", "gpt-*", 0.00002, 0.000025, 0, True, month, "acme",
    ]  # fmt: skip
    shadow = by_scope["key:watched", 80]
    assert [shadow[name] for name in facts] == [
        "quota_alert", "watched", "crew", "requests", "day", None, 1, 1, 0, False, day, "acme",
    ]  # fmt: skip
    assert shadow["text"].endswith("It is not enforced.")
    assert shadow["resets_at"].endswith("T00:00:00Z")
    assert any(posted["text"] in line for line in lines(gateway))
    assert {request.method for request in post_box.requests} == {"POST"}


def test_a_refusal_raises_an_alert_and_a_reservation_none(
    gateway: Gateway, upstream: ScriptedUpstream, post_box: Receiver
) -> None:
    with held(upstream, used(5, 25)) as let_go:
        running = Under(lambda: gateway.complete("refused", max_tokens=90, prompt="Hi"))  # reserves 91 of 100
        eventually(lambda: upstream.hits == 1)
        assert gateway.complete("refused", max_tokens=50).status == 429
        has_looked(gateway, "last-0", post_box)
        assert post_box.levels(key="refused") == []
        let_go()
        assert running.end().status == 200
    assert gateway.complete("refused", max_tokens=95).refusal[3] == "insufficient_quota"
    eventually(lambda: post_box.levels(key="refused") == [80, 100])
    assert "because a call was refused" in lines(gateway)[-1]


def test_a_limit_that_was_raised_while_a_call_ran_is_what_counts(
    gateway: Gateway, upstream: ScriptedUpstream, post_box: Receiver
) -> None:
    operator = Operator(gateway)
    raised = operator.create("raised", quotas=[daily(50, "tokens")])

    def complete() -> Answer:
        return operator.use(raised, max_tokens=40, prompt="Hi")

    with held(upstream, used(2, 40)) as let_go:
        running = Under(complete)
        eventually(lambda: upstream.hits == 1)
        operator.done("PATCH", "keys/raised", {"quotas": [daily(100, "tokens")]})
        until_all_know(gateway, raised, lambda received: received["quotas"][0]["limit"] == 100)
        let_go()
        assert running.end().status == 200
    has_looked(gateway, "last-2", post_box)
    assert post_box.levels(key="raised") == []
    upstream.answer_with(used(2, 40))
    assert complete().status == 200
    eventually(lambda: post_box.levels(key="raised") == [80])
    (posted,) = [each for each in post_box.received if each["key"] == "raised"]
    assert (posted["used"], posted["limit"]) == (84, 100)


def test_rates_raise_no_alert(gateway: Gateway, upstream: ScriptedUpstream, post_box: Receiver) -> None:
    upstream.answer_with(always=used(1, 1))
    spend(gateway, 2, "rated")
    assert gateway.complete("rated").status == 429
    has_looked(gateway, "last-1", post_box)
    assert post_box.levels(key="rated") == []


def test_the_webhook_is_in_no_argument(gateway: Gateway) -> None:
    for pid in [gateway.process.pid, *gateway.workers()]:
        shown = subprocess.run(
            ["ps", "-ww", "-p", str(pid), "-o", "args="], capture_output=True, text=True, check=True
        ).stdout
        assert "gateway" in shown
        assert TOKEN not in shown
    check_secrets(gateway)


def test_a_webhook_that_fails_at_first_gets_the_message_later(
    start_gateway: StartsGateways, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(always=used(1, 1))
    port = dead_port()
    keys = [key("alice", quotas=[daily(1)]), key("bob", quotas=[daily(1)]), key("last", quotas=[daily(1)])]
    gateway = start_gateway(alerting(upstream, f"http://127.0.0.1:{port}/services/{TOKEN}", *keys))
    spend(gateway, 1)
    eventually(lambda: "the alert webhook fails (it cannot be reached)" in gateway.stderr)
    sock = socket.create_server(("127.0.0.1", port))
    wrong = [scripted.error_json(404)] * 2
    with Receiver(scripted.error_json(503), scripted.reset_without_answer, TAKEN, TAKEN, *wrong, sock=sock) as receiver:
        eventually(lambda: len(receiver.received) == 4, timeout_s=20)
        assert Counter(receiver.levels()) == {80: 2, 100: 2}
        eventually(lambda: "the alert webhook takes what is posted again" in gateway.stderr)
        # What the webhook finds wrong is not posted again.
        spend(gateway, 1, "bob")
        eventually(lambda: gateway.stderr.count("the alert webhook does not take it (it answers 404)") == 2)
        has_looked(gateway, "last", receiver)
        assert receiver.levels(key="bob") == [80, 100]
    assert len(lines(gateway)) == 6
    check_secrets(gateway)


def test_a_receiver_that_hangs_is_in_nobodys_way(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=used(1, 1))
    names = [f"k{number}" for number in range(6)]
    with Receiver(*[scripted.silent] * 30) as receiver:
        gateway = start_gateway(
            alerting(upstream, receiver.url, *[key(name, quotas=[daily(1)]) for name in names], key("alice"))
        )
        for name in names:
            spend(gateway, 1, name)
        eventually(lambda: len(receiver.received) == 4)  # so many at once
        began = time.monotonic()
        spend(gateway, 30)
        eventually(lambda: len(lines(gateway)) == 12)
        assert time.monotonic() - began < 9  # before the first attempt is given up
        gateway.stop()
        assert time.monotonic() - began < 20
    check_secrets(gateway)


def expire_claims(gateway: Gateway, redis: RedisServer | None) -> None:
    """As if a minute had passed since the webhook was claimed."""
    if redis is None:
        with sqlite3.connect(f"{gateway.folder}/data/gateway.sqlite", timeout=10) as db:
            found = db.execute("UPDATE claims SET until_us = 1 WHERE name LIKE 'webhook|%'").rowcount
        db.close()
    else:
        found = 0
        for name in redis.cli("KEYS", "*:claim:webhook|*").split("\n"):
            redis.call("SET", name, "1 somebody-else", "KEEPTTL")
            found += 1
    assert found == 2


@pytest.mark.parametrize("store", ["embedded", "redis"])
def test_what_a_killed_worker_has_not_posted_is_posted_by_another(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, request: pytest.FixtureRequest, store: str
) -> None:
    upstream.answer_with(always=used(1, 1))
    redis: RedisServer | None = request.getfixturevalue("redis_server") if store == "redis" else None
    with Receiver(*[scripted.silent] * 2) as receiver:
        config = alerting(upstream, receiver.url, key("alice", quotas=[daily(1)]), key("last", quotas=[daily(1)]))
        gateway = start_gateway(config | ({"store": {"url": redis.url}} if redis else {}))
        spend(gateway, 1)
        eventually(lambda: len(receiver.received) == 2)
        # A kill costs the counts of the last 50 ms that the journal does not have; a scrape writes them.
        eventually(lambda: gateway.metric("gateway_quota_alerts_total", key="alice") == 2)
        (worker,) = gateway.workers()
        os.kill(worker, signal.SIGKILL)
        expire_claims(gateway, redis)
        eventually(lambda: Counter(receiver.levels(key="alice")) == {80: 2, 100: 2}, timeout_s=30)
        has_looked(gateway, "last", receiver)
        assert len(receiver.received) == 6
        assert len([line for line in lines(gateway) if "alice" in line]) == 2  # these are from before
        assert gateway.metric("gateway_quota_alerts_total", key="alice") == 2


def test_a_restart_sends_only_new_levels(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, receiver: Receiver, tmp_path: Path
) -> None:
    upstream.answer_with(always=used(1, 1))
    keys = [key("alice", quotas=[daily(4)]), key("bob", quotas=[daily(4)]), key("last", quotas=[daily(1)])]
    config = alerting(upstream, receiver.url, *keys, store={"url": f"embedded:{tmp_path / 'kept'}"})
    first = start_gateway(config)
    spend(first, 4)
    spend(first, 4, "bob")
    eventually(lambda: len(receiver.received) == 4)
    first.stop()
    config["keys"][0]["quotas"] = [daily(5)]
    second = start_gateway(config)
    has_looked(second, "last", receiver)
    assert [each["limit"] for each in receiver.received[4:-2]] == [5]  # four of five are 80 %; no call was necessary
    assert receiver.levels(key="bob") == [80, 100]
    spend(second, 1)
    eventually(lambda: receiver.levels(key="alice", limit=5) == [80, 100])
    assert len(receiver.received) == 8


def test_without_a_webhook_there_are_the_log_and_the_metric(
    start_gateway: StartsGateways, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(always=used(1, 1))
    gateway = start_gateway(settings(upstream.url, keys=[key("alice", quotas=[daily(1)])], metrics={"max_keys": 0}))
    spend(gateway, 1)
    eventually(lambda: len(lines(gateway)) == 2)
    eventually(lambda: gateway.metric("gateway_quota_alerts_total", key="other") == 2)


def test_certificates_are_verified(start_gateway: StartsGateways, upstream: ScriptedUpstream, tmp_path: Path) -> None:
    upstream.answer_with(always=used(1, 1))
    authority = Authority(tmp_path)
    with Receiver(tls=authority.server_context("127.0.0.1")) as receiver:
        config = alerting(upstream, receiver.url, key("alice", quotas=[daily(1)]))
        trusting = start_gateway(config, env={"SSL_CERT_FILE": str(authority.ca_file)})
        doubting = start_gateway(config)
        for gateway in (trusting, doubting):
            spend(gateway, 1)
        eventually(lambda: "fails (its certificate cannot be trusted" in doubting.stderr)
        eventually(lambda: len(receiver.received) == 2)
    check_secrets(trusting, doubting)


# ----------------------------------------------------------------------------------------------------------- the check


def checked(folder: Path, *keys: Any, env: dict[str, str] | None = None, **changes: Any) -> str:
    """What `gateway check` says of alerts."""
    file = folder / "gateway.yaml"
    file.write_text(
        json.dumps(settings("http://127.0.0.1:9/v1", keys=list(keys), store={"url": "embedded:./d"}, **changes))
    )
    done = run("check", "--config", str(file), env=env)
    assert (done.returncode, done.stderr) == (0, "")
    assert TOKEN not in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("  alerts")]
    return line.removeprefix("  alerts").strip()


def test_check_says_where_alerts_go(tmp_path: Path) -> None:
    quotas = key("a", quotas=[daily(1), {"usd": 1, "per": "month", "model": "x"}, {"tokens": 1, "per": "minute"}])
    webhook = {"alerts": {"webhook": f"https://me:{TOKEN}@hooks.example.com:8443/{TOKEN}?t={TOKEN}"}}
    assert checked(tmp_path, key("a"), **webhook) == "none: no quota is per day, week or month"
    received = "at 80 % and 100 % of 2 quotas per day, week or month, to log"
    assert checked(tmp_path, quotas) == f"{received} and metrics alone: alerts.webhook is not set"
    assert checked(tmp_path, quotas, **webhook) == f"{received}, metrics and https://hooks.example.com:8443"
    by_proxy = checked(tmp_path, quotas, env={"https_proxy": f"http://me:{TOKEN}@proxy:3128"}, **webhook)
    assert by_proxy == f"{received}, metrics and https://hooks.example.com:8443 through the proxy proxy:3128"


def test_receivers_of_two_workers_get_their_own_alerts_once(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, receiver: Receiver, start: Starts
) -> None:
    upstream.answer_with(always=used(1, 1))
    box, port = start()
    chat = {"webhook": receiver.url, "form": "slack", "at": ["50%", "100%"]}
    others = {"webhook": receiver.url, "teams": ["x"]}
    alerts = {
        "receivers": {
            "chat": chat,
            "owners": {"email": ["owner"]},
            "others": others,
        },
        "smtp": {"host": "127.0.0.1", "port": port, "security": "none", "sender": "gateway@example.org"},
    }
    keys = [key("alice", owner="ann@example.org", quotas=[daily(2)])]
    values = alerting(upstream, receiver.url, *keys, server={"workers": 2}) | {"alerts": alerts}
    gateway = start_gateway(values)
    spend(gateway, 2)
    eventually(lambda: len(box.taken) == 2 and len(receiver.received) == 2)
    assert [body["text"].split(" of ")[0] for body in receiver.received] == ["50 %", "100 %"]
    assert sorted(str(message["Subject"]).strip()[:5] for _, message in box.taken) == ["100 %", "80 % "]
    assert {address for to, _ in box.taken for address in to} == {"ann@example.org"}
    check_secrets(gateway)
