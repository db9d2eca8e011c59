"""Batches of an upstream that fails: nothing is charged twice, nothing is released before it is known."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.formats.ceilings import OUTPUT_ALLOWANCE, PROMPT_ALLOWANCE
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes import forms
from tests.fakes.scripted import Behaviour, Wire, answer, close_without_answer, cut_mid_body, error_json, ok_json
from tests.flows.background import records
from tests.flows.gateway_process import CHAT, Gateway, eventually, key, model, secret, settings
from tests.flows.test_batches import PRICE, create, line, settled, upload, windows

BODY = {"model": CHAT, "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}


def result(name: str, status: int = 200, **members: Any) -> bytes:
    received = {"custom_id": name, "response": {"status_code": status, "body": BODY | members}, "error": None}
    return json.dumps(received).encode() + b"\n"


RESULT = result("a")


class FailingBatches:
    """An upstream whose answers about one batch are given by the test, the last one again and again. `failures`: of its
    error file."""

    def __init__(self, states: list[Behaviour], results: list[Behaviour], failures: Behaviour | None = None) -> None:
        self.states = states
        self.results = results
        self.failures = failures or error_json(404)
        self.reads = 0

    async def __call__(self, wire: Wire) -> None:
        path, method = wire.request.path, wire.request.method
        if path == "/v1/files":
            await ok_json({"id": "file-in", "object": "file"})(wire)
        elif path == "/v1/batches":
            await ok_json({"id": "batch_1", "status": "validating"})(wire)
        elif path.endswith("/file-err/content"):
            await self.failures(wire)
        elif path.endswith("/content"):
            self.reads += 1
            await _next(self.results)(wire)
        elif method == "GET":
            await _next(self.states)(wire)
        else:
            await error_json(404)(wire)


def _next(answers: list[Behaviour]) -> Behaviour:
    return answers.pop(0) if len(answers) > 1 else answers[0]


def state(status: str, **more: Any) -> Behaviour:
    return ok_json({"id": "batch_1", "status": status} | more)


DONE = state("completed", output_file_id="file-out")


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, store_url: str) -> Gateway:
    return start_shared_gateway(
        settings(
            shared_upstream.url,
            models={CHAT: model("chat", price=PRICE)},
            keys=[key("alice", quotas=[{"tokens": 10**8, "per": "month"}])],
            files={"upstream": "main"},
            store={"url": store_url},
        )
    )


@pytest.mark.parametrize(
    "results",
    [
        [error_json(500), close_without_answer, cut_mid_body, answer(RESULT)],
        [answer(RESULT[:-20] + b"\n"), answer(RESULT)],
    ],
    ids=["unreadable", "damaged"],
)
def test_results_that_cannot_be_read_are_read_again(
    gateway: Gateway, upstream: ScriptedUpstream, results: list[Behaviour]
) -> None:
    is_damaged = len(results) == 2
    work = FailingBatches([error_json(503), ok_json({}), DONE], list(results))
    upstream.answer_with(always=work)
    before = windows(gateway)[0]
    began = create(gateway, upload(gateway, line("a")).json["id"])
    reserved = windows(gateway)[1]
    record = settled(gateway, began)
    if is_damaged:  # came whole, and says nothing: charged at the reservation
        assert record["usage_source"] == "estimated"
        assert record["prompt_tokens"] + record["completion_tokens"] == reserved
        return
    assert work.reads == 4
    assert (record["prompt_tokens"], record["completion_tokens"], record["usage_source"]) == (7, 3, "reported")
    assert windows(gateway) == (before + 10, 0)


BOTH = state("completed", output_file_id="file-out", error_file_id="file-err")
OUTPUT = {"output_file_id": "file-out"}


@pytest.mark.parametrize(
    ("batch", "results", "failures", "status", "answered", "shares"),
    [
        pytest.param(BOTH, RESULT, None, 200, 1, 0, id="error file missing"),
        pytest.param(BOTH, RESULT, result("b", 500), 200, 1, 0, id="errors"),
        pytest.param(DONE, RESULT + RESULT, None, 200, 1, 0, id="twice"),
        pytest.param(DONE, result("unknown") + RESULT, None, 200, 2, 0, id="unknown"),
        pytest.param(DONE, result("unknown") + RESULT + result("b"), None, 200, 2, 0, id="more than requests"),
        pytest.param(DONE, b"no JSON\n" + RESULT, None, 200, 1, 1, id="no JSON"),
        pytest.param(DONE, RESULT + result("b", usage=None), None, 200, 1, 1, id="no usage"),
        pytest.param(DONE, b"", None, 200, 0, 0, id="empty"),
        pytest.param(state("expired", **OUTPUT), RESULT, None, 200, 1, 0, id="expired"),
        pytest.param(state("cancelled", **OUTPUT), RESULT, None, 499, 1, 0, id="cancelled"),
    ],
)  # fmt: skip
def test_strange_results(
    gateway: Gateway, upstream: ScriptedUpstream, batch: Behaviour, results: bytes, failures: bytes | None, status: int,
    answered: int, shares: int,
) -> None:  # fmt: skip
    """Of two requests, `answered` are charged what they report, and `shares` a half of the reservation."""
    upstream.answer_with(
        always=FailingBatches([batch], [answer(results)], None if failures is None else answer(failures))
    )
    before = windows(gateway)[0]
    began = create(gateway, upload(gateway, line("a"), line("b")).json["id"])
    reserved = windows(gateway)[1]
    record = settled(gateway, began)
    tokens = record["prompt_tokens"] + record["completion_tokens"]
    assert (record["status"], tokens) == (status, 10 * answered + reserved // 2 * shares)
    assert record["usage_source"] == ("estimated" if shares else "reported" if answered else "none")
    assert windows(gateway) == (before + tokens, 0)


def test_an_answer_of_another_model_has_the_price_of_the_one_asked_for(
    gateway: Gateway, upstream: ScriptedUpstream
) -> None:
    upstream.answer_with(always=FailingBatches([DONE], [answer(result("a", model="gpt-other"))]))
    record = settled(gateway, create(gateway, upload(gateway, line("a")).json["id"]))
    assert (record["model"], record["returned_model"]) == (CHAT, "gpt-other")
    assert record["cost_usd"] == pytest.approx((7 * 1 + 3 * 4) / 1e6)


def test_results_that_are_gone_hold_the_reservation(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """It is charged after three days (tests/relay/test_deferred.py)."""
    work = FailingBatches([DONE], [error_json(404)])
    upstream.answer_with(always=work)
    began = create(gateway, upload(gateway, line("a")).json["id"])
    reserved = windows(gateway)[1]
    eventually(lambda: work.reads >= 2)
    assert reserved > 0
    assert windows(gateway)[1] == reserved
    assert records(gateway, began.id) == []
    work.results = [answer(RESULT)]
    settled(gateway, began)


def test_counts_that_cannot_be_true_are_bounded_by_the_requests(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    usage = {"prompt_tokens": 9 * 10**15, "completion_tokens": 9 * 10**15}
    senseless = b"".join([result(name, usage=usage) for name in "abcd"])
    upstream.answer_with(always=FailingBatches([DONE], [answer(senseless)]))
    before = windows(gateway)[0]
    record = settled(gateway, create(gateway, upload(gateway, line("a"), line("b")).json["id"]))
    sizes = [len(json.dumps(line(name)["body"])) for name in "ab"]
    assert record["prompt_tokens"] == sum(sizes) + 2 * PROMPT_ALLOWANCE
    assert record["completion_tokens"] == 2 * (2 * 40 + OUTPUT_ALLOWANCE)
    assert record["usage_source"] == "estimated"
    assert windows(gateway) == (before + record["prompt_tokens"] + record["completion_tokens"], 0)


def test_a_batch_that_was_not_made_costs_nothing(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    work = FailingBatches([DONE], [answer(RESULT)])
    upstream.answer_with(always=work)
    file_id = upload(gateway, line("a")).json["id"]
    before = windows(gateway)
    upstream.answer_with(error_json(400, message="Billing hard limit."), always=work)
    assert create(gateway, file_id).status == 400
    upstream.answer_with(error_json(500), always=work)
    assert create(gateway, file_id).status >= 500
    eventually(lambda: windows(gateway) == before)


def test_batches_without_results_cost_nothing(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """All at once: each is polled a while after it was made."""
    statuses = {"failed": 400, "expired": 200, "cancelled": 499}
    works = {
        f"batch_{status}": FailingBatches([state(status, id=f"batch_{status}")], [answer(RESULT)])
        for status in statuses
    }
    made = iter(works)

    async def behave(wire: Wire) -> None:
        if wire.request.path == "/v1/batches":
            await ok_json({"id": next(made), "status": "validating"})(wire)
        else:
            known = [work for name, work in works.items() if name in wire.request.path]
            await (known or list(works.values()))[0](wire)

    upstream.answer_with(always=behave)
    before = windows(gateway)[0]
    file_id = upload(gateway, line("a")).json["id"]
    began = {status: create(gateway, file_id) for status in statuses}
    assert {status: settled(gateway, each)["status"] for status, each in began.items()} == statuses
    assert windows(gateway) == (before, 0)


def test_a_file_is_slow_cut_or_too_long(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=FailingBatches([DONE], [answer(RESULT)]))
    body = forms.form(("purpose", "batch"), ("file", json.dumps(line("a")).encode()))
    head = {**forms.TYPE, "Content-Length": str(2**40)}
    with gateway.connect() as wire:
        wire.send(b"POST /v1/files HTTP/1.1\r\nHost: g\r\n")
        lines = [f"{name}: {value}\r\n" for name, value in head.items()]
        wire.send("".join([*lines, f"Authorization: Bearer {secret('alice')}\r\n\r\n"]).encode())
        assert wire.read_head().status == 413
    cut = gateway.send("POST", "/v1/files", body[:-30], headers=forms.TYPE)
    assert cut.refusal[3] == "invalid_form"
    lying = body.replace(b'filename="a.wav"', b'filename="a.wav"\r\nContent-Length: 5')
    assert gateway.send("POST", "/v1/files", lying, headers=forms.TYPE).refusal[3] == "invalid_form"
    assert upstream.hits == 0
