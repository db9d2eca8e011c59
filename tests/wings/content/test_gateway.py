"""Prompts and answers of calls through a whole gateway, as a store of spans and the files have them."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.wings.content.policy import is_kept
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.collector import Collector
from tests.fakes.good_answers import FORMS, SNOW
from tests.fakes.scripted import (
    CHUNKED,
    Scripted,
    chunk,
    cut_stream,
    error_json,
    ok_json,
    raw,
    silent,
    stalled_stream,
    stream,
)
from tests.flows.client import Answer
from tests.flows.gateway_process import UPSTREAM_KEY, Gateway, eventually, key, model, secret, settings

from .kept_lines import lines

FORMATS = ("completions", "chat", "messages", "responses", "generate_content")
MESSAGES = [{"role": "user", "content": "Hello"}]
ASKED = [{"role": "user", "parts": [{"type": "text", "content": "Hello"}]}]


def said(*parts: dict[str, Any], reason: str = "stop") -> list[dict[str, Any]]:
    return [{"role": "assistant", "parts": [*parts], "finish_reason": reason}]


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "content": content}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as found:
        yield found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("content") / "kept"


@pytest.fixture(scope="module")
def gateway(
    start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, collector: Collector, folder: Path
) -> Gateway:
    capabilities = {"responses": True, "messages": True, "generate_content": True}
    return start_shared_gateway(
        settings(
            shared_upstream.url,
            upstreams={
                "main": {"capabilities": capabilities},
                "chats": {"base_url": shared_upstream.url, "capabilities": {"messages": "via_chat"}},
                "singles": {"base_url": shared_upstream.url, "capabilities": {"prompt_arrays": False}},
            },
            models={
                **{name: model(name) for name in FORMATS}, "other": model("chat"), "amended": model("responses"),
                "bridged": model("messages", "chats"), "single": model("completions", "singles"),
                "hedged": model("chat") | {
                    "routes": [{"upstream": "main"}, {"upstream": "chats"}], "max_attempts": 2, "hedge_after": "50ms",
                },
                "twice": model("chat") | {"routes": [{"upstream": "main"}, {"upstream": "chats"}], "max_attempts": 2},
            },
            parameters={"models": {"amended": {"set": {"instructions": "Be kind"}}}},
            teams={"red": {}, "blue": {}},
            keys=[
                key("kept"), key("half"), key("never-hers"), key("plain"), key("member", team="red"),
                key("guest", team="blue"),
            ],
            content={
                "otlp": {"endpoint": collector.url, "headers": {"Authorization": "Basic b3RscC1zZWNyZXQtdG9rZW4="}},
                "files": {"folder": str(folder)},
                "keep": [
                    {"keys": ["kept"]}, {"keys": ["half"], "share": 0.5}, {"keys": ["never-*"]},
                    {"teams": ["red"], "models": ["chat"]},
                ],
                "never": ["never-*"],
                "redact": {
                    "paths": ["input.*.parts.tool_call.arguments", "system.text"],
                    "patterns": [r"[\w.+-]+@[\w-]+\.[\w.]+"],
                },
                "max_call_bytes": 200_000,
            },
        )
    )  # fmt: skip


@pytest.fixture(autouse=True)
def good_upstream(upstream: ScriptedUpstream) -> Iterator[None]:
    upstream.answer_with(always=ok_json(FORMS["chat"].document("Hi")))
    yield
    upstream.answer_with()


class Kept:
    """A kept call, as both stores have it."""

    def __init__(self, collector: Collector, folder: Path, call_id: str) -> None:
        self.line = eventually(lambda: next((each for each in lines(folder) if each["call"] == call_id), None))
        self.attributes = self.line["attributes"]
        self.span = eventually(
            lambda: next((s for s in collector.spans if s.attributes["gateway.request_id"] == call_id), None)
        )
        for name in ("gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions"):
            assert json.loads(self.span.attributes.get(name, "null")) == self.attributes.get(name)

    @property
    def asked(self) -> Any:
        return self.attributes["gen_ai.input.messages"]

    @property
    def said(self) -> Any:
        return self.attributes.get("gen_ai.output.messages")


@pytest.fixture
def kept(gateway: Gateway, collector: Collector, folder: Path) -> Any:
    def find(answer: Answer) -> Kept:
        return Kept(collector, folder, answer.headers["x-request-id"])

    return find


@pytest.mark.parametrize("name", FORMATS)
def test_a_plain_call_of_each_format(name: str, gateway: Gateway, upstream: ScriptedUpstream, kept: Any) -> None:
    form = FORMS[name]
    upstream.answer_with(ok_json(form.document("Hi")))
    path, members = form.request(name, "ann", is_streamed=False)
    found = kept(gateway.post(path, members, key="kept"))
    assert (found.asked, [each["parts"] for each in found.said]) == (ASKED, [[text("Hi")]])
    attributes = found.span.attributes
    assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (1, 3)
    assert (attributes["gen_ai.request.model"], attributes["gateway.key"]) == (name, "kept")
    assert (found.span.kind, found.span.is_error, found.span.parent) == ("client", False, "")


@pytest.mark.parametrize("name", FORMATS)
def test_a_streamed_call_of_each_format(name: str, gateway: Gateway, upstream: ScriptedUpstream, kept: Any) -> None:
    form = FORMS[name]
    events = [*form.pieces("Hi"), *[form.piece("!")] * 20, *form.finish("Hi")]  # alike events take a way of their own
    if name == "responses":
        events = [*form.pieces("Hi"), *form.finish("Hi")]
    first, *others = map(form.event, events)
    upstream.answer_with(raw(CHUNKED + chunk(first), *map(chunk, [*others, form.end()]), chunk(b""), delay_s=0.001))
    path, members = form.request(name, "ann", is_streamed=True)
    answer = gateway.post(path, members, key="kept")
    assert answer.status == 200
    found = kept(answer)
    texts = [part["content"] for part in found.said[0]["parts"]]
    assert "".join(texts) == "Hi" + SNOW + ("" if name == "responses" else "!" * 20)
    assert (found.asked, "gateway.content_cut" in found.attributes) == (ASKED, False)


def test_nothing_is_kept_of_other_calls(gateway: Gateway, folder: Path, kept: Any) -> None:
    """Of another key, of `never` although it is in `keep`, of another model of the team, of another team."""
    unkept = [
        gateway.chat(who, model=name).id
        for who, name in (("plain", "chat"), ("never-hers", "chat"), ("member", "other"), ("guest", "chat"))
    ]
    last = gateway.chat("member", model="chat")
    kept(last)  # one worker keeps them in their order
    assert not [each for each in lines(folder) if each["call"] in unkept]


def test_a_share_of_calls_is_chosen_by_their_ids(gateway: Gateway, folder: Path, kept: Any) -> None:
    calls = [gateway.chat("half", model="chat").id for _ in range(20)]
    kept(gateway.chat("kept", model="chat"))
    found = {each["call"] for each in lines(folder)}
    assert [call for call in calls if call in found] == [call for call in calls if is_kept(call, 0.5)]


def test_what_the_settings_name_is_left_out(gateway: Gateway, upstream: ScriptedUpstream, kept: Any) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "mail", "arguments": '{"to": "all"}'}}
    messages = [
        {"role": "system", "content": "Write to ann@example.org"},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sent to bob.b@mail.example.com"},
        {"role": "user", "content": [
            {"type": "text", "text": "And this?"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
        ]},
    ]  # fmt: skip
    upstream.answer_with(ok_json(FORMS["chat"].document("Ask eve@example.org.")))
    found = kept(gateway.chat("kept", model="chat", messages=messages))
    system, called, response, asked = found.asked
    assert system == {"role": "system", "parts": [text("Write to [redacted]")]}
    arguments = {"type": "tool_call", "id": "call_1", "name": "mail", "arguments": "[redacted]"}
    assert called == {"role": "assistant", "parts": [arguments]}
    sent = {"type": "tool_call_response", "id": "call_1", "response": "sent to [redacted]"}
    assert response == {"role": "tool", "parts": [sent]}
    assert asked["parts"][0] == text("And this?")
    assert asked["parts"][1]["uri"].startswith("[left out: a file of ")
    assert found.said == said(text("Ask [redacted]"))


def test_instructions_beside_the_messages(gateway: Gateway, upstream: ScriptedUpstream, kept: Any) -> None:
    upstream.answer_with(ok_json(FORMS["messages"].document("Hi")))
    path, members = FORMS["messages"].request("messages", "ann", is_streamed=False)
    found = kept(gateway.post(path, members | {"system": "Be kind"}, key="kept"))
    assert found.attributes["gen_ai.system_instructions"] == [text("[redacted]")]
    assert found.said == said(text("Hi"), reason="end_turn")


def test_the_request_is_kept_as_parameters_have_changed_it(
    gateway: Gateway, upstream: ScriptedUpstream, kept: Any
) -> None:
    upstream.answer_with(ok_json(FORMS["responses"].document("Hi")))
    path, members = FORMS["responses"].request("amended", "ann", is_streamed=False)
    found = kept(gateway.post(path, members, key="kept"))
    assert "instructions" not in members
    assert len(found.attributes["gen_ai.system_instructions"]) == 1


def test_a_body_that_is_too_long_to_be_parsed_here(gateway: Gateway, kept: Any) -> None:
    """Its values are placeholders in the worker; the store has its text."""
    long = "word " * 30_000
    found = kept(gateway.chat("kept", model="chat", messages=[{"role": "user", "content": long}]))
    assert (found.asked, "gateway.content_cut" in found.attributes) == (
        [{"role": "user", "parts": [text(long)]}],
        False,
    )


def test_a_body_that_is_longer_than_what_is_kept(gateway: Gateway, kept: Any) -> None:
    """The beginning of its text is there, without the end, where a pattern may be cut in half."""
    found = kept(gateway.chat("kept", model="chat", messages=[{"role": "user", "content": "word " * 50_000}]))
    (part,) = found.asked[0]["parts"]
    assert part["content"].startswith('{"model": "chat", "messages": [{"role": "user", "content": "word word ')
    assert (len(part["content"]), found.attributes["gateway.content_cut"]) == (200_000 - 512, True)


def test_a_call_that_fails_has_its_prompt_and_its_status(
    gateway: Gateway, upstream: ScriptedUpstream, kept: Any
) -> None:
    upstream.answer_with(error_json(400, message="no", code="bad_thing"))
    found = kept(gateway.chat("kept", model="chat"))
    assert (found.asked, found.said, found.span.is_error) == (ASKED, None, True)
    assert (found.attributes["http.response.status_code"], found.attributes["error.type"]) == (400, "bad_thing")


def test_a_stream_that_breaks_off_has_what_there_was(gateway: Gateway, upstream: ScriptedUpstream, kept: Any) -> None:
    form = FORMS["chat"]
    upstream.answer_with(cut_stream([form.piece("Half an "), form.piece('"answer"')]))
    found = kept(gateway.chat("kept", model="chat", stream=True))
    assert (found.said, found.span.is_error) == (said(text('Half an "answer"'), reason="cut"), True)


def test_an_attempt_that_failed_is_not_in_it(gateway: Gateway, upstream: ScriptedUpstream, kept: Any) -> None:
    upstream.answer_with(error_json(500), ok_json(FORMS["chat"].document("Second")))
    found = kept(gateway.chat("kept", model="twice"))
    assert (found.said, found.attributes["gateway.attempts"]) == (said(text("Second")), 2)


def test_an_answer_of_another_format(gateway: Gateway, upstream: ScriptedUpstream, kept: Any) -> None:
    """Of a translated call, the request is the client's, and the answer the upstream's: both are messages."""
    tool = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    document = FORMS["chat"].document("")
    document["choices"][0] |= {"message": {"role": "assistant", "tool_calls": [tool]}, "finish_reason": "tool_calls"}
    upstream.answer_with(ok_json(document))
    path, members = FORMS["messages"].request("bridged", "ann", is_streamed=False)
    members["tools"] = [{"name": "look", "input_schema": {"type": "object"}}]
    found = kept(gateway.post(path, members, key="kept"))
    called = {"type": "tool_call", "id": "c1", "name": "look", "arguments": {"at": 1}}
    assert (found.asked, found.said) == (ASKED, said(called, reason="tool_call"))


def test_no_secret_is_kept(gateway: Gateway, collector: Collector, folder: Path, kept: Any) -> None:
    kept(gateway.chat("kept", model="chat"))
    everything = b"".join([each.read_bytes() for each in folder.iterdir()]) + b"".join(
        [each.body for each in collector.requests]
    )
    for hidden in (UPSTREAM_KEY, secret("kept"), "b3RscC1zZWNyZXQtdG9rZW4="):
        assert hidden.encode() not in everything
    assert {each.headers["authorization"] for each in collector.requests} == {"Basic b3RscC1zZWNyZXQtdG9rZW4="}
    assert {each.stat().st_mode & 0o777 for each in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700


def test_the_metric_counts_both_stores(gateway: Gateway, kept: Any) -> None:
    kept(gateway.chat("kept", model="chat"))
    for store in ("otlp", "files"):
        assert eventually(lambda store=store: gateway.metric("gateway_content_calls_total", store=store) > 0)
    assert gateway.metric("gateway_content_calls_total", outcome="dropped") == 0


def test_the_audit_log_has_the_settings_once(gateway: Gateway) -> None:
    (entry,) = eventually(lambda: [e for e in gateway.admin("audit").json["data"] if e["kind"] == "content"])
    assert (entry["actor"], entry["action"], entry["before"]) == ("configuration", "update", None)
    assert entry["after"]["keep"][1] == {"keys": ["half"], "share": 0.5}
    assert "b3RscC" not in json.dumps(entry)


def test_an_attempt_that_another_one_beat_is_not_in_it(gateway: Gateway, upstream: ScriptedUpstream, kept: Any) -> None:
    upstream.answer_with(silent, ok_json(FORMS["chat"].document("Sooner")))
    found = kept(gateway.chat("kept", model="hedged"))
    assert (found.said, found.attributes["gateway.attempts"]) == (said(text("Sooner")), 2)


def test_a_client_that_leaves_has_what_there_was(gateway: Gateway, upstream: ScriptedUpstream, kept: Any) -> None:
    form = FORMS["chat"]
    upstream.answer_with(stalled_stream([form.piece("Half")]))
    with gateway.stream("kept", path="/v1/chat/completions", model="chat", messages=MESSAGES) as read:
        head = read.read_head()
        read.read_chunk()
    found = kept(head)
    assert (found.said, found.attributes["gateway.ended"]) == (said(text("Half"), reason="cut"), "client_gone")


def test_each_prompt_of_a_call_has_its_answer(gateway: Gateway, upstream: ScriptedUpstream, kept: Any) -> None:
    """Where the upstream takes one prompt at a time, each prompt has an attempt of its own."""
    upstream.answer_with(*[ok_json(FORMS["completions"].document(word)) for word in ("One", "Two")])
    found = kept(gateway.complete("kept", model="single", prompt=["First", "Second"]))
    assert [each["parts"] for each in found.asked] == [[text("First")], [text("Second")]]
    assert sorted(each["parts"][0]["content"] for each in found.said) == ["One", "Two"]


def test_a_stream_that_is_longer_than_what_is_kept(gateway: Gateway, upstream: ScriptedUpstream, kept: Any) -> None:
    form = FORMS["chat"]
    upstream.answer_with(stream([form.piece("word " * 1000)] * 50 + form.finish("")))
    found = kept(gateway.chat("kept", model="chat", stream=True))
    (part,) = found.said[0]["parts"]
    assert set(part["content"].split()) == {"word"}
    assert 150_000 < len(part["content"]) < 200_000
    assert (found.said[0]["finish_reason"], found.attributes["gateway.content_cut"]) == ("cut", True)


def test_a_key_learns_which_of_its_calls_are_kept(gateway: Gateway) -> None:
    def shown(name: str) -> Any:
        return gateway.get("/admin/api/content", key=name).json["data"]

    to = gateway.admin("content").json["data"][0]["to"]
    assert to[1] == "files of the gateway, for 30 days"
    assert shown("half") == [{"key": "half", "to": to, "calls": [{"models": None, "share": 0.5}]}]
    assert shown("member") == [{"key": "member", "to": to, "calls": [{"models": ["chat"], "share": 1.0}]}]
    assert shown("never-hers") == shown("plain") == []
    assert [row["key"] for row in gateway.admin("content").json["data"]] == ["half", "kept", "member"]


def test_a_reload_changes_what_is_kept_and_is_in_the_audit_log(
    start_gateway: StartsGateways, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    config = settings(upstream.url, content={"files": {"folder": str(folder)}, "keep": [{}]})
    gateway = start_gateway(config)
    upstream.answer_with(always=ok_json(FORMS["chat"].document("Hi")))

    def entries() -> list[dict[str, Any]]:
        return [each for each in gateway.admin("audit").json["data"] if each["kind"] == "content"]

    eventually(entries)
    first = gateway.chat("alice").id
    eventually(lambda: folder.exists() and lines(folder))
    config["content"]["never"] = ["alice"]
    config["store"] = gateway.config["store"]
    gateway.file.write_text(json.dumps(config))
    gateway.kill(signal.SIGHUP)
    changed, begun = eventually(lambda: len(entries()) == 2 and entries())
    assert (begun["before"], changed["before"], changed["after"]["never"]) == (None, begun["after"], ["alice"])
    eventually(lambda: gateway.admin("content").json["data"][0]["key"] != "alice")
    gateway.chat("alice")
    other = gateway.chat("bob").id
    eventually(lambda: {each["call"] for each in lines(folder)} == {first, other})


def test_a_store_that_hangs_delays_no_call_and_no_end(
    start_gateway: StartsGateways, upstream: ScriptedUpstream
) -> None:
    with Scripted(always=silent, prefix="") as store:
        content = {"otlp": {"endpoint": store.url}, "keep": [{}]}
        gateway = start_gateway(settings(upstream.url, content=content))
        upstream.answer_with(always=ok_json(FORMS["chat"].document("Hi")))
        assert gateway.chat("alice").status == 200
        eventually(lambda: store.hits)
        assert gateway.chat("alice").status == 200
        gateway.stop()
        assert store.hits == 1


def test_nothing_is_kept_where_nothing_is_set(start_gateway: StartsGateways, upstream: ScriptedUpstream) -> None:
    gateway = start_gateway(settings(upstream.url))
    upstream.answer_with(always=ok_json(FORMS["chat"].document("Hi")))
    assert gateway.chat("alice").status == 200
    assert gateway.admin("content").json["data"] == []
    assert not [each for each in gateway.admin("audit").json["data"] if each["kind"] == "content"]
    assert list(gateway.metrics("gateway_content")) == []
