"""Realtime: what the upstream has billed by the end of a session is charged, wherever in it the end is.

A client and an upstream follow a script. The session ends behind each of its steps, in each way in which one can end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from tests.conftest import StartsGateways
from tests.fakes.realtime import RealtimeUpstream
from tests.flows.gateway_process import Gateway, eventually, key, model, settings
from tests.wings.realtime.test_realtime import Socket, close_code, session, until

MODEL, THINKS = "gpt-realtime", "gpt-realtime-2"
PRICE = {"input": 4, "cached_input": 0.4, "output": 16, "audio_in": 32, "audio_out": 64}
SOUND = "A" * 128_000
"""Two seconds of 16 bits at 24 kHz."""
_ITEM = {"item_id": "item_1", "content_index": 0}
_HEARD = "conversation.item.input_audio_transcription"
TEXT = "one two three four"


class Step(NamedTuple):
    """What client and upstream say, and what the upstream bills for it."""

    name: str
    client: tuple[dict[str, Any], ...] = ()
    upstream: dict[str, Any] | None = None
    tokens: int = 0
    audio_ms: int = 0
    """Of a transcription that is billed by its length: then its tokens are not billed."""


def update(name: str, **more: Any) -> dict[str, Any]:
    wanted = {"audio": {"input": {"transcription": {"model": name}}}}
    return {"type": "session.update", "session": {"type": "realtime", **wanted}, **more}


def transcription(name: str, *last: Step) -> list[Step]:
    """A session with a transcription of two seconds, which ends so."""
    asked = update(name)
    return [
        Step("updated", (asked,), {"type": "session.updated", "session": asked["session"]}),
        Step(
            "committed",
            ({"type": "input_audio_buffer.append", "audio": SOUND}, {"type": "input_audio_buffer.commit"}),
            {"type": "input_audio_buffer.committed", **_ITEM},
            tokens=20,
            audio_ms=2000,
        ),
        Step("text", (), {"type": f"{_HEARD}.delta", "delta": TEXT, **_ITEM}, tokens=4),
        *last,
    ]


def detected(name: str) -> list[Step]:
    """The same, where the upstream detects the speech."""
    asked = update(name)
    return [
        Step("updated", (asked,), {"type": "session.updated", "session": asked["session"]}),
        Step(
            "started",
            ({"type": "input_audio_buffer.append", "audio": SOUND},),
            {"type": "input_audio_buffer.speech_started", "audio_start_ms": 0, **_ITEM},
            tokens=20,  # the upstream may end the speech itself, where the session ends
            audio_ms=2000,
        ),
        Step("stopped", (), {"type": "input_audio_buffer.speech_stopped", "audio_end_ms": 2000, **_ITEM}),
        Step("committed", (), {"type": "input_audio_buffer.committed", **_ITEM}),
        Step("text", (), {"type": f"{_HEARD}.delta", "delta": TEXT, **_ITEM}, tokens=4),
    ]


_DONE: dict[str, Any] = {"type": "response.done", "response": {"id": "resp_1", "status": "completed"}}
_REPORT = {"input_tokens": 3000, "output_tokens": 80, "total_tokens": 3080}
RESPONSE = [
    Step(
        "item",
        ({"type": "conversation.item.create", "item": {"content": [{"type": "input_text", "text": "word " * 4000}]}},),
        {"type": "conversation.item.added", "item": {}},
    ),
    Step(
        "created",
        ({"type": "response.create"},),
        {"type": "response.created", "response": {"id": "resp_1"}},
        tokens=4000,
    ),
    Step("text", (), {"type": "response.output_text.delta", "response_id": "resp_1", "delta": TEXT}, tokens=4),
    Step(
        "sound", (), {"type": "response.output_audio.delta", "response_id": "resp_1", "delta": "A" * 32_000}, tokens=10
    ),
]
ANSWERED = [
    RESPONSE[0],
    Step(
        "started",
        ({"type": "input_audio_buffer.append", "audio": SOUND},),
        {"type": "input_audio_buffer.speech_started", "audio_start_ms": 0, **_ITEM},
    ),
    Step(
        "stopped", (), {"type": "input_audio_buffer.speech_stopped", "audio_end_ms": 2000, **_ITEM}, tokens=4020
    ),  # the upstream answers it without an event of the client
    Step("committed", (), {"type": "input_audio_buffer.committed", **_ITEM}),
    Step("created", (), {"type": "response.created", "response": {"id": "resp_1"}}),
    *RESPONSE[2:],
]
SLOW_SOUND = [
    Step(
        "updated",
        ({"type": "session.update", "session": {"audio": {"output": {"format": {"type": "audio/pcmu"}}}}},),
        {"type": "session.updated", "session": {}},
    ),
    Step(
        "created", ({"type": "response.create"},), {"type": "response.created", "response": {"id": "resp_1"}}, tokens=1
    ),
    Step(
        "sound", (), {"type": "response.output_audio.delta", "response_id": "resp_1", "delta": "A" * 32_000}, tokens=60
    ),
    Step("done", (), _DONE),
]  # fmt: skip
_COMPLETED = {"type": f"{_HEARD}.completed", "transcript": TEXT, **_ITEM}
_ENDS = {
    "without usage": _COMPLETED,
    "with nothing": _COMPLETED | {"usage": {"type": "tokens", "input_tokens": 0, "output_tokens": 0}},
    "failed": {"type": f"{_HEARD}.failed", "error": {"code": "audio_unintelligible"}, **_ITEM},
    "of another item": _COMPLETED | {"item_id": "item_2"},
}
SCRIPTS: dict[str, list[Step]] = {
    **{
        f"{name}, {end}": transcription(name, Step(end, (), event))
        for name in ("scribe", "whisper-1")
        for end, event in _ENDS.items()
    },
    **{f"{name}, detected": detected(name) for name in ("scribe", "whisper-1")},
    "response, done": [*RESPONSE, Step("done", (), _DONE)],
    "response, nothing": [
        *RESPONSE,
        Step("done", (), {**_DONE, "response": _DONE["response"] | {"usage": {"input_tokens": 0, "output_tokens": 0}}}),
    ],
    "response, reported": [
        *RESPONSE,
        Step("done", (), {**_DONE, "response": _DONE["response"] | {"usage": _REPORT}}, tokens=3080 - 4014),
        Step(
            "second",
            ({"type": "response.create"},),
            {"type": "response.created", "response": {"id": "resp_2"}},
            tokens=3080,
        ),
    ],
    "response of slow sound": SLOW_SOUND,
    "response, detected": ANSWERED,
}
ENDS: dict[str, dict[str, Any] | None] = {
    "client leaves": None,
    "upstream closes": {"type": "test.close", "code": 1000},
    "upstream fails": {"type": "test.close", "code": 4242},
    "upstream is cut": {"type": "test.cut"},
}


@pytest.fixture(scope="module")
def upstream() -> Iterator[RealtimeUpstream]:
    with RealtimeUpstream() as made:
        yield made


@pytest.fixture(autouse=True)
def _fresh(upstream: RealtimeUpstream) -> None:
    upstream.reset()
    upstream.speaks_itself = False


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, upstream: RealtimeUpstream) -> Gateway:
    models = {
        MODEL: model("realtime", price=PRICE, max_output_tokens=500),
        THINKS: model("realtime", price=PRICE, max_output_tokens=500),
        "scribe": model("transcriptions", price={"input": 6, "output": 10}),
        "cheap": model("transcriptions", price={"input": 0.006, "output": 0.01}),
        "whisper-1": model("transcriptions", price={"audio_per_minute": 0.006}),
    }
    quotas = [{"tokens": 100_000_000, "per": "month"}]
    keys = [key("alice", quotas=quotas), key("little", quotas=[{"tokens": 1700, "per": "month"}])]
    able = {"main": {"capabilities": {"realtime": True}}}
    return start_shared_gateway(settings(upstream.url, models=models, upstreams=able, keys=keys))


async def follow(socket: Socket, steps: list[Step]) -> None:
    """Until the client has seen the last event of these steps."""
    for step in steps:
        for event in step.client:
            await socket.send_json(event)
        if step.upstream is not None:
            await socket.send_json({"type": "test.say", "event": step.upstream})
            await until(socket, step.upstream["type"])


def id_of(socket: Socket) -> str:
    return str(socket._response.headers["x-request-id"])


async def charged(gateway: Gateway, name: str, who: str = "alice") -> list[dict[str, Any]]:
    """The records of the responses and transcriptions of a session that has ended."""

    def found() -> list[dict[str, Any]]:
        rows = [row for row in gateway.calls(who, limit=1000) if row["id"].startswith(name)]
        return rows if name in {row["id"] for row in rows} else []

    rows = await asyncio.to_thread(eventually, found)
    return [row for row in rows if row["id"] != name]


def used(gateway: Gateway, who: str = "alice") -> tuple[int, int]:
    (window,) = gateway.admin("quotas", key=who).json["data"]
    return window["used"], window["reserved"]


async def end(socket: Socket, way: str) -> None:
    event = ENDS[way]
    if event is not None:
        await socket.send_json(event)
        await close_code(socket)


@pytest.mark.parametrize("way", ENDS)
@pytest.mark.parametrize("script", SCRIPTS)
async def test_what_is_billed_is_charged_wherever_a_session_ends(gateway: Gateway, script: str, way: str) -> None:
    steps = SCRIPTS[script]
    for number in range(1, len(steps) + 1):
        before, _ = used(gateway)
        async with session(gateway, model=MODEL) as socket:
            name = id_of(socket)
            await follow(socket, steps[:number])
            await end(socket, way)
        rows = await charged(gateway, name)
        tokens = sum(row["prompt_tokens"] + row["completion_tokens"] for row in rows)
        where = f"behind {steps[number - 1].name}: {rows}"
        if "whisper-1" in script:
            assert sum(row["units"].get("audio_ms", 0) for row in rows) >= sum(
                step.audio_ms for step in steps[:number]
            ), where
        else:
            assert tokens >= sum(step.tokens for step in steps[:number]), where
        assert all(row["cost_usd"] for row in rows), where
        assert bool(rows) == any(step.tokens for step in steps[:number]), where
        await asyncio.to_thread(eventually, lambda: used(gateway) == (before + tokens, 0))  # noqa: B023


async def test_a_model_that_reasons_unseen_is_charged_what_was_reserved(gateway: Gateway) -> None:
    """GPT-Realtime-2 bills tokens of reasoning, which no event shows (developers.openai.com, models)."""
    for steps, tokens in ((RESPONSE, 500), ([*RESPONSE, SCRIPTS["response, reported"][4]], 80)):
        async with session(gateway, model=THINKS) as socket:
            name = id_of(socket)
            await follow(socket, steps)
        (row,) = await charged(gateway, name)
        assert row["completion_tokens"] == tokens


async def test_a_transcription_that_shows_nothing_and_fails_is_free(gateway: Gateway) -> None:
    failed = Step("failed", (), _ENDS["failed"])
    async with session(gateway, model=MODEL) as socket:
        name = id_of(socket)
        await follow(socket, [*transcription("scribe")[:2], failed])
    assert await charged(gateway, name) == []


ANSWERS: dict[str, tuple[dict[str, Any], int]] = {
    "by itself": ({"audio": {"input": {"turn_detection": {"type": "server_vad", "create_response": True}}}}, 1),
    "when it is asked": ({"audio": {"input": {"turn_detection": {"type": "server_vad", "create_response": False}}}}, 0),
    "when it is asked, beta": ({"turn_detection": {"type": "server_vad", "create_response": False}}, 0),
}


@pytest.mark.parametrize("way", ANSWERS)
async def test_a_speech_that_the_upstream_answers_is_charged_once(gateway: Gateway, way: str) -> None:
    """Also where the session ends before its response begins (API reference, "turn_detection")."""
    settings_of_it, number = ANSWERS[way]
    updated = Step("updated", (), {"type": "session.updated", "session": settings_of_it})
    async with session(gateway, model=MODEL) as socket:
        name = id_of(socket)
        await follow(socket, [updated, *ANSWERED[1:4]])
    assert len(await charged(gateway, name)) == number
    async with session(gateway, model=MODEL) as socket:
        name = id_of(socket)
        await follow(socket, [updated, *ANSWERED[1:], Step("done", (), _DONE)])
    assert len(await charged(gateway, name)) == 1


SPEECH: dict[str, tuple[list[dict[str, Any]], int]] = {
    "dropped": ([{"type": "input_audio_buffer.cleared"}], 0),
    "failed": ([_ENDS["failed"]], 0),
    "committed without its end": ([{"type": "input_audio_buffer.committed", **_ITEM}], 1),
    "shown before its end": (
        [
            {"type": f"{_HEARD}.delta", "delta": TEXT, **_ITEM},
            {"type": "input_audio_buffer.speech_stopped", "audio_end_ms": 2000, **_ITEM},
        ],
        1,
    ),
    "found twice": ([{"type": "input_audio_buffer.speech_started", "audio_start_ms": 0, **_ITEM}], 1),
    "another one": ([{"type": "input_audio_buffer.speech_started", "audio_start_ms": 9, "item_id": "item_3"}], 2),
}


@pytest.mark.parametrize("way", ["client leaves", "upstream closes"])
@pytest.mark.parametrize("then", SPEECH)
async def test_a_speech_is_one_transcription_however_it_goes_on(gateway: Gateway, then: str, way: str) -> None:
    """One that is dropped, or that fails without a text, is free."""
    events, number = SPEECH[then]
    async with session(gateway, model=MODEL) as socket:
        name = id_of(socket)
        created = Step("created", (), {"type": "session.created", "session": ANSWERS["when it is asked"][0]})
        await follow(socket, [created, *detected("scribe")[:2], *[Step(then, (), event) for event in events]])
        await end(socket, way)
    rows = await charged(gateway, name)
    assert len(rows) == number, rows
    assert all(row["cost_usd"] for row in rows)
    await asyncio.to_thread(eventually, lambda: used(gateway)[1] == 0)


async def test_a_speech_is_charged_from_its_beginning_on(gateway: Gateway) -> None:
    """The silence before it, and what came behind its end, are not."""
    steps = detected("whisper-1")
    steps[1] = steps[1]._replace(upstream={**(steps[1].upstream or {}), "audio_start_ms": 1500})
    async with session(gateway, model=MODEL) as socket:
        name = id_of(socket)
        await follow(socket, steps[:2])
    (row,) = await charged(gateway, name)
    assert row["units"] == {"audio_ms": 500}


async def test_a_commit_that_the_upstream_refuses_is_free(gateway: Gateway) -> None:
    updated, committed = transcription("scribe")[:2]
    refusal = {"type": "error", "error": {"code": "input_audio_buffer_commit_empty", "event_id": "mine"}}
    commit = {**committed.client[1], "event_id": "mine"}
    async with session(gateway, model=MODEL) as socket:
        name = id_of(socket)
        await follow(socket, [updated, committed._replace(client=(committed.client[0], commit), upstream=refusal)])
    assert await charged(gateway, name) == []


async def test_a_transcription_that_the_quota_has_no_room_for_is_not_sent_on(
    gateway: Gateway, upstream: RealtimeUpstream
) -> None:
    asked, sound = update("scribe"), {"type": "input_audio_buffer.append", "audio": SOUND * 10}
    async with session(gateway, "little", MODEL) as socket:
        await follow(socket, [Step("updated", (asked,), {"type": "session.updated", "session": asked["session"]})])
        await socket.send_json(sound)
        await socket.send_json({"type": "input_audio_buffer.commit"})
        assert (await until(socket, "error"))["error"]["code"] in ("rate_limit_exceeded", "insufficient_quota")
        assert await close_code(socket) == 1008
    assert "input_audio_buffer.commit" not in {event["type"] for event in upstream.seen}
    await asyncio.to_thread(eventually, lambda: used(gateway, "little") == (0, 0))


# ------------------------------------------------------------------------------------------------ changes of the model

_OK = {"type": "session.updated", "session": {}}
_NO = {"type": "error", "error": {"type": "invalid_request_error", "message": "no", "event_id": "second"}}
_NO_NAME = {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}
_TOLD = {"type": "session.updated", "session": update("scribe")["session"]}
CHANGES: dict[str, tuple[str, str, dict[str, Any] | None, str]] = {
    "refused": ("scribe", "cheap", _NO, "scribe"),
    "refused without a name": ("scribe", "cheap", _NO_NAME, "scribe"),
    "without an answer": ("scribe", "cheap", None, "scribe"),
    "without an answer, dearer": ("cheap", "scribe", None, "scribe"),
    "confirmed, cheaper": ("scribe", "cheap", _OK, "cheap"),
    "confirmed, dearer": ("cheap", "scribe", _OK, "scribe"),
    "answered with another": ("scribe", "cheap", _TOLD, "scribe"),
}
"""The model before, the one that the client names then, the upstream's answer, and whose price is charged."""
_USD_OF_10_TOKENS_EACH = {"scribe": (10 * 6 + 10 * 10) / 1e6, "cheap": (10 * 0.006 + 10 * 0.01) / 1e6}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_of_the_transcriber_counts_once_it_is_confirmed(gateway: Gateway, change: str) -> None:
    first, second, answer, charges = CHANGES[change]
    usage = {"type": "tokens", "input_tokens": 10, "output_tokens": 10, "total_tokens": 20}
    async with session(gateway, model=MODEL) as socket:
        name = id_of(socket)
        await follow(
            socket,
            [
                Step("first", (update(first),), {"type": "session.updated", "session": update(first)["session"]}),
                Step("second", (update(second, event_id="second"),), answer),
                *transcription("")[1:3],
                Step("completed", (), _COMPLETED | {"usage": usage}),
            ],
        )
    (row,) = await charged(gateway, name)
    assert row["cost_usd"] == pytest.approx(_USD_OF_10_TOKENS_EACH[charges])


@pytest.mark.parametrize("shown", [{"model": "upstreams-own"}, {"language": "en"}])
async def test_a_transcriber_that_the_upstream_chooses_is_charged(gateway: Gateway, shown: dict[str, str]) -> None:
    """The client names none, and leaves before the first text of the transcription."""
    asked = {"type": "session.update", "session": {"input_audio_transcription": {"language": "en"}}}
    answer = {"type": "session.updated", "session": {"input_audio_transcription": shown}}
    async with session(gateway, model=MODEL) as socket:
        name = id_of(socket)
        await follow(socket, [Step("first", (asked,), answer), transcription("")[1]])
    (row,) = await charged(gateway, name)
    assert row["cost_usd"] > 0


async def test_the_transcriber_has_one_name_in_an_event(gateway: Gateway) -> None:
    asked = update("scribe")
    asked["session"]["input_audio_transcription"] = {"model": "cheap"}
    async with session(gateway, model=MODEL) as socket:
        await socket.send_json(asked)
        assert (await until(socket, "error"))["error"]["code"] == "duplicate_parameter"


# ------------------------------------------------------------------------------------------- errors beside a response

OTHERS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "of another event": ([], {"event_id": "other"}),
    "of no event": ([], {}),
    "of no event, as null": ([], {"event_id": None}),
    "of an id that was used before": ([{"type": "test.x", "event_id": "mine"}], {"event_id": "mine"}),
}
"""What the client sends beside a `response.create`, and what names the event that an error is about."""


@pytest.mark.parametrize("other", OTHERS)
async def test_an_error_about_something_else_leaves_what_is_reserved(gateway: Gateway, other: str) -> None:
    before, about = OTHERS[other]
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": "no", **about}}
    async with session(gateway, model=MODEL) as socket:
        name = id_of(socket)
        asked = Step("asked", (*before, {"type": "response.create", "event_id": "mine"}), error)
        await follow(socket, [asked])
        await asyncio.to_thread(eventually, lambda: used(gateway)[1] == 2 * (1024 + 500))
    (row,) = await charged(gateway, name)
    assert row["prompt_tokens"] == 1024


async def test_an_error_about_an_event_without_an_id_names_none_to_the_client(
    gateway: Gateway, upstream: RealtimeUpstream
) -> None:
    async with session(gateway, model=MODEL) as socket:
        name = id_of(socket)
        await socket.send_json({"type": "response.create"})
        await asyncio.to_thread(
            eventually, lambda: [each for each in upstream.seen if each["type"] == "response.create"]
        )
        (asked,) = [each for each in upstream.seen if each["type"] == "response.create"]
        error = {"type": "error", "error": {"type": "invalid_request_error", "message": "no"}}
        error["error"] |= {"event_id": asked["event_id"]}
        await socket.send_json({"type": "test.say", "event": error})
        assert (await until(socket, "error"))["error"]["event_id"] is None
    assert await charged(gateway, name) == []
