"""The text of an answer goes to hooks after calls of keys whose owners agreed, and to no others."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.accounting.call_log import CallLog
from gateway.accounting.call_record import lost_record
from gateway.accounting.share import PartLog
from gateway.config import Config, build
from gateway.formats.table import FORMATS
from gateway.observe.metrics import Telemetry
from gateway.observe.tracing import HEDGED
from gateway.records import Granted, Usage
from gateway.relay.attempt import Attempt
from gateway.wings.hooks import answers as under_test
from gateway.wings.hooks.amending import make
from gateway.wings.hooks.answers import Answers, HeldBytes
from gateway.wings.hooks.disclosing import of_keys
from gateway.wings.hooks.reading import READS, texts_of
from tests.accounting.test_call_log import ScriptedLedger, a_call, books_of, log_of
from tests.fakes import scripted
from tests.fakes.good_answers import FORMS, SNOW
from tests.fakes.scripted import Scripted, until
from tests.web.conftest import ADMIN_TOKEN, AUTH, KEY, Inside

from .test_hooks import CHAT, GOOD

# ---------------------------------------------------------------------------------------------------------- the reading


@pytest.mark.parametrize("name", READS)
def test_the_text_of_an_answer_of_each_format(name: str) -> None:
    form, endpoint = FORMS[name], cast(Any, name)
    pieces = b"".join(map(form.event, form.pieces("Hi")))
    whole = pieces + b"".join(map(form.event, form.finish("Hi"))) + form.end()
    assert texts_of(endpoint, json.dumps(form.document("Hi")).encode()) == ["Hi"]
    assert texts_of(endpoint, whole) == texts_of(endpoint, pieces) == ["Hi" + SNOW]
    assert texts_of(endpoint, whole[: whole.index(rb"\u2603")]) == ["Hi"]


@pytest.mark.parametrize(
    ("name", "answer", "texts"),
    [
        ("chat", {"choices": [{"message": {"content": "A"}}, {"message": {"content": "B"}}]}, ["A", "B"]),
        ("chat", {"choices": [{"message": {"content": None, "refusal": "No"}}]}, ["No"]),
        ("chat", {"choices": [{"message": {"reasoning": "Hm", "content": [{"type": "text", "text": "A"}]}}]}, ["A"]),
        ("chat", {"choices": [{"message": {"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}}]}, []),
        ("messages", {"content": [{"type": "thinking", "thinking": "Hm"}, {"type": "text", "text": "A"}]}, ["A"]),
        ("responses", {"output": [{"type": "reasoning", "content": [{"type": "text", "text": "Hm"}]}]}, []),
        ("generate_content", {"candidates": [{"content": {"parts": [{"text": "Hm", "thought": True}]}}]}, []),
        ("chat", {"error": {"message": "no"}}, []),
        ("chat", {"choices": {"message": "no"}}, []),
        ("messages", {"content": 5, "delta": {"type": "text_delta", "text": 5}}, []),
    ],
)
def test_what_is_text(name: Any, answer: dict[str, Any], texts: list[str]) -> None:
    assert texts_of(name, json.dumps(answer).encode()) == texts


def test_a_stream_that_brings_its_text_at_its_end_alone() -> None:
    form = FORMS["responses"]
    assert texts_of("responses", b"".join(map(form.event, form.finish("Hi")))) == ["Hi" + SNOW]


@pytest.mark.parametrize("data", [b"", b"<html>", b"[1]", b"data: x\n\n", b'{"choices": [{"mess', b"\xff\xfe"])
def test_what_is_no_answer_has_no_text(data: bytes) -> None:
    assert [texts_of(name, data) for name in READS] == [[]] * len(READS)


# ----------------------------------------------------------------------------------------------------------- the bounds


def draft(log: CallLog) -> Attempt:
    """With these members alone."""
    blank: Any = dict.fromkeys(Attempt._fields)
    return Attempt(**blank)._replace(log=log, format=FORMATS["chat"], readers=())


async def test_no_more_is_held_than_there_is_room_for() -> None:
    room, log = HeldBytes(10), log_of(books_of(ScriptedLedger(Granted(())), []), a_call())
    first, second = Answers(room, "a", 7), Answers(room, "b", 7)
    first.attempted(draft(log)).readers[0](b"x" * 20)
    second.attempted(draft(log)).readers[0](b"y" * 20)
    assert (first.size, first.is_cut, second.size, second.is_cut, room.left) == (7, True, 3, True, 0)
    (again,) = first.attempted(draft(log)).readers  # another attempt: the first one's answer does not count
    assert (first.size, first.is_cut, room.left) == (0, False, 7)
    again(b"z" * 5)
    first.release()
    again(b"z" * 5)
    second.release()
    assert (first.size, second.size, room.left) == (0, 0, 10)


async def test_the_answers_of_one_key_leave_room_for_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "MOST_BYTES", 7)
    room, log = HeldBytes(20), log_of(books_of(ScriptedLedger(Granted(())), []), a_call())
    flood, other = [Answers(room, "a", 7) for _ in range(3)], Answers(room, "b", 7)
    for each in (*flood, other):
        each.attempted(draft(log)).readers[0](b"x" * 20)
    assert ([each.size for each in flood], other.size) == ([7, 3, 0], 7)
    for each in flood:
        each.release()
    assert (room.left, room.left_of("a")) == (13, 10)


class Beaten(PartLog):
    stopped_as = HEDGED


async def test_answers_that_did_not_serve_the_call_do_not_count() -> None:
    books, call, body = books_of(ScriptedLedger(Granted(())), []), a_call(), json.dumps(FORMS["chat"].document("Hi"))
    async with log_of(books, call) as whole:
        good, failed, beaten = [kind(whole, books, call, lambda: None) for kind in (PartLog, PartLog, Beaten)]
        answers = Answers(HeldBytes(), "k")
        for log in (good, failed, beaten):
            answers.attempted(draft(log)).readers[0](body.encode())
        for log in (good, beaten):
            log.close(status=200, usage=Usage(), ended="done")
    assert answers.texts() == ["Hi"] * 3
    answers.end()
    assert answers.texts() == ["Hi"]


# ------------------------------------------------------------------------------------------------------ for whose keys

KEYS = [{"id": "k", "secret": KEY}, {"id": "else", "secret": KEY.replace("sk-test", "sk-else")}]
OTHER = {"Authorization": f"Bearer {KEYS[1]['secret']}"}
FORM = FORMS["chat"]
STREAM = scripted.stream([*FORM.pieces("Hi"), *FORM.finish("Hi")])


def settings(hook: Scripted, **after: Any) -> dict[str, Any]:
    return {"after_call": {"books": {"url": hook.url, "answers_of": ["k"], **after}}}


@pytest.mark.parametrize(
    ("answer", "texts"),
    [
        (GOOD, ["Hi"]),
        (STREAM, ["Hi" + SNOW]),
        (scripted.cut_stream(FORM.pieces("Hi")), ["Hi" + SNOW]),
        (scripted.error_json(400), []),
    ],
)
async def test_a_hook_gets_the_answer_of_a_key_whose_owner_agreed(
    inside: Inside, answer: scripted.Behaviour, texts: list[str]
) -> None:
    async with Scripted(always=answer) as upstream, Scripted(always=scripted.ok_json({})) as hook:
        client = await inside(upstream.url, keys=KEYS, hooks=settings(hook))
        for headers in (AUTH, OTHER):
            body = {**CHAT, "stream": answer != GOOD}
            async with client.post("/v1/chat/completions", json=body, headers=headers) as answered:
                await answered.read()
        await until(lambda: hook.hits == 2)
    received = {each.json["call"]["key"]: each.json.get("answer") for each in hook.requests}
    assert received == {"k": {"texts": texts, "cut": False}, "else": None}


SINGLE = scripted.ok_json(FORMS["completions"].document("One"))


@pytest.mark.parametrize(
    ("path", "body", "answer", "texts"),
    [
        ("/v1/messages", {"max_tokens": 5, "messages": CHAT["messages"]}, GOOD, ["Hi"]),
        ("/v1/messages", {"max_tokens": 5, "messages": CHAT["messages"], "stream": True}, STREAM, ["Hi" + SNOW]),
        ("/v1/completions", {"prompt": ["A", "B"]}, SINGLE, ["One", "One"]),
    ],
)
async def test_the_answers_of_calls_in_another_form_than_the_clients(
    inside: Inside, path: str, body: dict[str, Any], answer: scripted.Behaviour, texts: list[str]
) -> None:
    """Translated from a chat, and of an upstream that takes one prompt at a time."""
    async with Scripted(always=answer) as upstream, Scripted(always=scripted.ok_json({})) as hook:
        able = {"messages": "via_chat", "prompt_arrays": False}
        client = await inside(
            upstream.url, hooks=settings(hook),
            upstreams={"up": {"base_url": upstream.url, "api_key": "upstream-secret-key", "capabilities": able}},
            models={"m": {"routes": [{"upstream": "up"}], "max_output_tokens": 9, "endpoints": [
                "chat", "messages", "completions"]}},
        )  # fmt: skip
        async with client.post(path, json={"model": "m", **body}, headers=AUTH) as answered:
            assert answered.status == 200, await answered.text()
            await answered.read()
        await until(lambda: hook.hits)
    assert hook.requests[0].json["answer"] == {"texts": texts, "cut": False}


async def test_never_wins_and_the_owner_sees_which_hooks_read(inside: Inside, tmp_path: Any) -> None:
    async with Scripted(always=GOOD) as upstream, Scripted(always=scripted.ok_json({})) as hook:
        never = {"files": {"folder": str(tmp_path / "kept")}, "keep": [{"keys": ["nobody"]}], "never": ["else"]}
        client = await inside(
            upstream.url, keys=KEYS, hooks=settings(hook, answers_of=["*"], models=["m"]), content=never
        )
        shown = {}
        for name, headers in (("k", AUTH), ("else", OTHER)):
            async with client.post("/v1/chat/completions", json=CHAT, headers=headers) as answered:
                assert answered.status == 200
            async with client.get("/admin/api/content", headers=headers) as content:
                shown[name] = (await content.json())["data"]
        await until(lambda: hook.hits == 2)
        async with client.get("/admin/api/content", headers={"Authorization": f"Bearer {ADMIN_TOKEN}"}) as content:
            assert len((await content.json())["data"]) == 1
    assert {each.json["call"]["key"]: "answer" in each.json for each in hook.requests} == {"k": True, "else": False}
    calls = [{"models": ["m"], "share": 1.0}]
    assert shown == {
        "k": [{"key": "k", "to": [f"{hook.url.removesuffix('/v1')} (answers alone)"], "calls": calls}],
        "else": [],
    }


def configured(url: str, answers_of: list[str], content: Any = None, **hook: Any) -> Config:
    return build({
        "upstreams": {"up": {"base_url": "https://api.openai.com/v1", "api_key": "sk-1"}},
        "models": {"m": {"routes": [{"upstream": "up"}], "max_output_tokens": 9}},
        "keys": [{"id": "k", "secret": "sk-gw-k-0123456789abcdef"}],
        "hooks": {"after_call": {"books": {"url": url, "answers_of": answers_of, **hook}}},
        "content": content or {},
    })  # fmt: skip


@pytest.mark.parametrize(
    ("agreed", "content", "is_shown"), [(["*"], {}, True), (["*"], {"never": ["*"]}, False), ([], {}, False)]
)
async def test_a_reload_decides_about_calls_that_are_under_way(
    agreed: list[str], content: dict[str, Any], *, is_shown: bool
) -> None:
    async with Scripted(always=scripted.ok_json({})) as hook:
        (after,) = before = make(configured(hook.url, ["*"]), ())
        call = a_call()
        reservation = SimpleNamespace(call=call, ended=())
        telemetry = Telemetry([], 1)
        after.note(cast(Any, reservation), cast(Any, SimpleNamespace(accounting=SimpleNamespace(telemetry=telemetry))))
        make(configured(hook.url, agreed, content), before)
        (listener,) = reservation.ended
        listener(lost_record(call, call.model.routes[0]), ())
        await until(lambda: hook.hits)
        await after.close()
    assert ("answer" in hook.requests[0].json) is is_shown


def test_the_owner_of_a_key_that_a_hook_is_not_about_sees_no_note() -> None:
    config = configured("https://hooks.example.com", ["*"], keys=["a*"])
    find = of_keys(config)
    assert find is not None
    assert (find("k", None), find("a1", None) is None) == (None, False)
    assert of_keys(configured("https://hooks.example.com", [])) is None
