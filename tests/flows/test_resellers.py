"""Resellers as they are, in front of a whole gateway: every recorded answer, and all else that they do differently.

Each answer has an upstream of its own, so that what one teaches the gateway about an upstream does not touch the next.
What becomes of an upstream's bill when a client has left stands in test_aborts.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gateway.records import Fault
from tests.conftest import StartsGateways
from tests.fakes.scripted import Scripted, Wire, ok_json
from tests.upstream.resellers import GOOD, POISON, REQUEST_ID, ROWS, Row, recorded

from .client import Answer
from .faults_table import data_of_events
from .gateway_process import UPSTREAM_KEY, Gateway, eventually, key, model, settings

ERRORS = [row for row in ROWS if not recorded(row.name).is_stream]
STREAMS = [row for row in ROWS if recorded(row.name).is_stream]
REFUSED_AS = "gpt-3.5-turbo-instruct"
"""The reseller's own name of the model, which stands in some of its messages."""


async def reseller(wire: Wire) -> None:
    """Answers as the first part of the path says."""
    await wire.write(recorded(wire.request.path.split("/")[1]).wire)


@pytest.fixture(scope="module")
def resellers() -> Iterator[Scripted]:
    with Scripted(always=reseller) as made:
        yield made


@pytest.fixture(scope="module")
def other() -> Iterator[Scripted]:
    """Whom a call goes to where the reseller cannot."""
    with Scripted(always=ok_json()) as made:
        yield made


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, resellers: Scripted, other: Scripted) -> Gateway:
    names = [*(row.name for row in ROWS), *GOOD]
    base = resellers.url.removesuffix("/v1")
    upstreams: dict[str, Any] = {"other": {"base_url": other.url, "api_key": UPSTREAM_KEY}}
    models: dict[str, Any] = {}
    for name in names:
        for kind in ("alone", "first"):
            upstreams[f"{kind}-{name}"] = {"base_url": f"{base}/{name}/v1", "api_key": UPSTREAM_KEY}
        models[f"alone-{name}"] = {"routes": [{"upstream": f"alone-{name}", "model": REFUSED_AS}]}
        models[f"first-{name}"] = {
            "routes": [{"upstream": f"first-{name}", "priority": 1}, {"upstream": "other", "priority": 2}]
        }
    limited = {"logprobs": False, "best_of": False, "echo": False, "suffix": False, "token_prompts": False}
    single = {"prompt_arrays": False}
    for name, capabilities in (("limited", limited), ("single", single)):
        upstreams[name] = {
            "base_url": f"{base}/good/v1", "api_key": UPSTREAM_KEY, "capabilities": capabilities,
        }  # fmt: skip
        models[name] = model("completions", name)
    everything = {name: {"max_output_tokens": 100, **each} for name, each in models.items()}
    keys = [key("alice", quotas=[{"tokens": 10**9, "per": "day"}])]
    return start_shared_gateway(settings(other.url, upstreams=upstreams, models=everything, keys=keys))


def ask(gateway: Gateway, name: str, *, chat: bool = False, **members: Any) -> Answer:
    if chat:
        return gateway.chat(model=name, **members)
    return gateway.complete(model=name, **members)


def check_nothing_of_ours(answer: Answer) -> None:
    shown = answer.body.decode() + repr([line for line in answer.header_lines if not line[0].startswith("x-gateway-")])
    assert not [each for each in (*POISON, UPSTREAM_KEY) if each in shown]


def logged(gateway: Gateway, answer: Answer) -> str:
    """The line about this call."""
    return eventually(lambda: next((line for line in gateway.stderr.splitlines() if f"call {answer.id}" in line), ""))


# ------------------------------------------------------------------------------------------------- errors, as answers


@pytest.mark.parametrize("row", ERRORS, ids=lambda row: row.name)
def test_the_error_names_the_side_at_fault(gateway: Gateway, row: Row) -> None:
    answer = ask(gateway, f"alone-{row.name}")
    error = answer.error
    assert (answer.status, error["code"], error["param"]) == (row.status, row.code, row.param)
    check_nothing_of_ours(answer)
    if row.fault is None:
        assert (error["message"], error["type"]) == (row.message, row.type)
    else:
        assert "The upstream for this model " in error["message"]
        assert answer.headers["x-gateway-attempts"] == "1"
    if row.status in (429, 503):
        assert (answer.headers["retry-after"], answer.headers["retry-after-ms"]) == ("1", "1000")
    else:
        assert "retry-after" not in answer.headers
    line = gateway.line(id=answer.id)
    assert row.log in line["upstream_error"]
    assert (line["upstream"], line["error"]) == (f"alone-{row.name}", error["code"] or error["type"])
    if row.fault is None:
        assert answer.id not in gateway.stderr  # a client's error: it is in the access line only
    else:
        assert f"upstream alone-{row.name}: " in logged(gateway, answer)
    record = gateway.call(answer.id)
    source = "estimated" if row.fault is Fault.NOT_JSON else "none"  # a 200 that cannot be read may have cost something
    assert (record["status"], record["usage_source"], record["prompt_tokens"] > 0) == (
        row.status, source, source != "none",
    )  # fmt: skip


@pytest.mark.parametrize("row", ERRORS, ids=lambda row: row.name)
def test_what_is_not_the_clients_fault_goes_elsewhere(gateway: Gateway, other: Scripted, row: Row) -> None:
    hits = other.hits
    answer = ask(gateway, f"first-{row.name}")
    if row.fault is None:
        assert (answer.status, answer.headers["x-gateway-upstream"]) == (row.status, f"first-{row.name}")
        assert other.hits == hits
    elif row.fault is Fault.NOT_JSON:  # it was sent and read: to send it again might be paid twice
        assert (answer.status, answer.headers["x-gateway-attempts"]) == (502, "1")
    else:
        assert (answer.status, answer.headers["x-gateway-upstream"]) == (200, "other")
        assert answer.headers["x-gateway-attempts"] == "2"
        assert other.hits == hits + 1


def test_owner_sees_whose_balance_is_spent(gateway: Gateway) -> None:
    name = "first-balance-of-the-account"
    ask(gateway, name)
    assert gateway.metric("gateway_upstream_attempts_total", upstream=name, outcome="balance_spent") >= 1
    assert f"upstream {name}: key #1 in cooldown for " in eventually(lambda: gateway.stderr)


def test_an_unserved_model_does_not_affect_the_others(start_gateway: StartsGateways, other: Scripted) -> None:
    """Its host is asked for other models as before."""

    async def some(wire: Wire) -> None:
        await wire.write(recorded("no-channel" if wire.request.json["model"] == "gone" else "good").wire)

    with Scripted(always=some) as seller:
        models = {name: model("completions") for name in ("gone", "there")}
        gateway = start_gateway(settings(seller.url, models=models))
        statuses = {ask(gateway, "gone").status for _ in range(12)}
        assert statuses == {503}
        assert seller.hits < 12
        assert {ask(gateway, "there").status for _ in range(5)} == {200}


# ------------------------------------------------------------------------------------------------ errors, in a stream


@pytest.mark.parametrize("row", STREAMS, ids=lambda row: row.name)
def test_stream_ends_with_an_error_event(gateway: Gateway, row: Row) -> None:
    answer = ask(gateway, f"alone-{row.name}", stream=True)
    assert answer.status == 200
    *_, last = data_of_events(answer.body)
    assert last["error"]["code"] == row.code
    assert sorted(last["error"]) == ["code", "message", "param", "type"]
    assert b"[DONE]" not in answer.body
    check_nothing_of_ours(answer)
    assert row.log in gateway.line(id=answer.id)["upstream_error"]
    record = gateway.call(answer.id)
    assert (record["status"], record["ended"], record["truncated"]) == (row.status, "error", True)


def test_a_stream_that_begins_with_an_error_goes_elsewhere(gateway: Gateway, other: Scripted) -> None:
    """The client has seen nothing of it yet (new-api#7399: there it is not tried again)."""
    answer = ask(gateway, "first-stream-error-first", stream=True)
    assert (answer.status, answer.headers["x-gateway-upstream"]) == (200, "other")
    assert b'"error"' not in answer.body
    assert "no_channel while refused (in a 200, code new_api_error" in logged(gateway, answer)
    answer = ask(gateway, "first-stream-balance-later", stream=True)
    assert answer.headers["x-gateway-upstream"] == "first-stream-balance-later"
    assert b'"upstream_quota_exceeded"' in answer.body


# ------------------------------------------------------------------------------------------------------- good answers


def test_missing_usage_is_estimated_and_marked(gateway: Gateway) -> None:
    answer = ask(gateway, "alone-no-usage")
    assert answer.body == recorded("no-usage").body
    record = gateway.call(answer.id)
    assert (record["usage_source"], record["completion_tokens"]) == ("estimated", 7)
    assert record["prompt_tokens"] > 0


def test_model_names_are_recorded_as_asked_routed_and_returned(gateway: Gateway) -> None:
    answer = ask(gateway, "alone-good")
    assert answer.json["model"] == "gpt-3.5-turbo-0125"
    record = gateway.call(answer.id)
    models = [record["model"], record["routed_model"], record["returned_model"]]
    assert models == ["alone-good", REFUSED_AS, "gpt-3.5-turbo-0125"]


def test_headers_are_our_own(gateway: Gateway) -> None:
    """A reseller's headers have another request id and no limits; the gateway's have the caller's limits."""
    answer = ask(gateway, "alone-good")
    assert answer.id.startswith("req_")
    assert REQUEST_ID not in repr(answer.header_lines)
    assert "x-ratelimit-remaining-tokens" in answer.headers


@pytest.mark.parametrize("is_asked", [True, False])
def test_usage_chunk_of_a_completion_is_not_called_a_chats(gateway: Gateway, is_asked: bool) -> None:
    """new-api writes that chunk itself. Only it is changed, and only for who sees it; nothing else of it is."""
    said = recorded("stream-usage-called-chat").body
    more: dict[str, Any] = {"stream_options": {"include_usage": True}} if is_asked else {}
    answer = ask(gateway, "alone-stream-usage-called-chat", stream=True, **more)
    if is_asked:
        assert answer.body == said.replace(b'"chat.completion.chunk"', b'"text_completion"')
    else:
        *texts, _, done = said.removesuffix(b"\n\n").split(b"\n\n")
        assert answer.body == b"\n\n".join([*texts, done]) + b"\n\n"
    record = gateway.call(answer.id)
    assert (record["usage_source"], record["prompt_tokens"], record["completion_tokens"]) == ("reported", 5, 2)


def test_keep_alive_comments_pass_and_are_no_first_token(gateway: Gateway) -> None:
    answer = ask(gateway, "alone-stream-ping", stream=True)
    assert answer.body == recorded("stream-ping").body
    record = gateway.call(answer.id)
    assert (record["status"], record["usage_source"], record["completion_tokens"]) == (200, "estimated", 4)


def test_reasoning_is_kept_on_chat(gateway: Gateway) -> None:
    answer = ask(gateway, "alone-reasoning", chat=True)
    assert answer.body == recorded("reasoning").body
    more = {"stream_options": {"include_usage": True}}
    answer = ask(gateway, "alone-stream-reasoning", chat=True, stream=True, **more)
    assert answer.body == recorded("stream-reasoning").body


# ------------------------------------------------------------------------------------------------------- what it cannot


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"logprobs": 5}, "logprobs"),
        ({"best_of": 2}, "best_of"),
        ({"echo": True}, "echo"),
        ({"suffix": "."}, "suffix"),
        ({"prompt": [1, 2]}, "prompt"),
    ],
)
def test_what_it_would_drop_is_refused_before_it_is_asked(
    gateway: Gateway, resellers: Scripted, members: dict[str, Any], param: str
) -> None:
    hits = resellers.hits
    answer = ask(gateway, "limited", **members)
    assert (answer.status, answer.error["param"]) == (400, param)
    assert resellers.hits == hits


def test_prompts_go_one_by_one_where_arrays_are_miscounted(gateway: Gateway, resellers: Scripted) -> None:
    hits = resellers.hits
    answer = ask(gateway, "single", prompt=["a", "b"])
    assert [choice["index"] for choice in answer.json["choices"]] == [0, 1]
    assert sorted(request.json["prompt"] for request in resellers.requests[hits:]) == ["a", "b"]  # side by side
    assert answer.json["usage"]["total_tokens"] == 14


@pytest.mark.parametrize("prompt", ["", None])
def test_an_empty_prompt_is_its_own_to_refuse(gateway: Gateway, resellers: Scripted, prompt: str | None) -> None:
    answer = ask(gateway, "alone-without-param-and-code", prompt=prompt)
    assert (answer.status, answer.error["message"]) == (400, "field prompt is required")
    assert resellers.requests[-1].json["prompt"] == prompt
