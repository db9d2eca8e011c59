"""The golden files of the translations between chat, Responses and Messages.

Each file of tests/recorded/translate is one call, its folder the client's format (`anthropic`: a chat client of an
upstream with Messages). `request` is the client's body and `sent` the upstream's; `answer` is the upstream's plain
answer, or `chunks` the data of its events; `shown` is what the client gets: an object, or the data of the events.
Requests and upstream answers are written by hand; the rest was checked by eye against the formats' descriptions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gateway.bridge.translate import (
    chat_answer,
    chat_request,
    messages_answer,
    messages_request,
    responses_answer,
    responses_request,
)

FOLDER = Path(__file__).parents[1] / "recorded" / "translate"
GOLDEN: dict[str, dict[str, Any]] = {
    f"{path.parent.name}/{path.stem}": json.loads(path.read_text()) for path in sorted(FOLDER.glob("*/*.json"))
}
BASE = "ID"
CREATED = 1700000000
PROMPT_TOKENS, COMPLETION_TOKENS = 11, 5
"""The gateway's estimates."""


def asked(way: str, request: dict[str, Any]) -> Any:
    """The translated request."""
    match way:
        case "responses":
            return responses_request.translate(request)
        case "messages":
            return messages_request.translate(request)
        case _:
            return chat_request.translate(request, output_limit=4096)


def stream(way: str, request: dict[str, Any]) -> Any:
    """The translator of the stream of this request."""
    match way:
        case "responses":
            frame = responses_answer.ResponseFrame(BASE, CREATED, "m")
            return responses_answer.ResponseStream(asked(way, request), frame)
        case "messages":
            return messages_answer.MessageStream(
                asked(way, request), messages_answer.MessageFrame(BASE, "m", PROMPT_TOKENS)
            )
        case _:
            shows_usage = bool((request.get("stream_options") or {}).get("include_usage"))
            return chat_answer.ChatStream(chat_answer.ChatFrame(BASE, CREATED, "m", shows_usage))


def finish(translator: Any) -> bytes:
    """The end of its stream."""
    ended: bytes = translator.finish(completion_tokens=COMPLETION_TOKENS)
    return ended


def plain(way: str, request: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """The client's answer for a plain one of the upstream."""
    match way:
        case "responses":
            frame = responses_answer.ResponseFrame(BASE, CREATED, "m")
            return responses_answer.answer(asked(way, request), frame, answer)
        case "messages":
            return messages_answer.answer(
                asked(way, request), messages_answer.MessageFrame(BASE, "m", PROMPT_TOKENS), answer,
                completion_tokens=COMPLETION_TOKENS,
            )  # fmt: skip
        case _:
            return chat_answer.answer(chat_answer.ChatFrame(BASE, CREATED, "m"), answer)


def streamed(way: str, request: dict[str, Any], chunks: list[dict[str, Any]]) -> bytes:
    """The client's stream for these chunks or events of the upstream."""
    translator = stream(way, request)
    return b"".join([*(translator.feed(chunk) for chunk in chunks), finish(translator)])


def data_of(events: bytes) -> list[dict[str, Any]]:
    """The data of the events of a stream; an event's name has to be its type."""
    found = []
    for event in events.decode().split("\n\n")[:-1]:
        *names, data = event.split("\n")
        if data == "data: [DONE]":
            continue
        found.append(json.loads(data.removeprefix("data: ")))
        assert names in ([], [f"event: {found[-1].get('type')}"])
    return found


def sent(way: str, golden: dict[str, Any]) -> Any:
    """What the upstream is asked."""
    return asked(way, golden["request"]).body


def shown(way: str, golden: dict[str, Any]) -> Any:
    """What the client gets."""
    if "chunks" in golden:
        return data_of(streamed(way, golden["request"], golden["chunks"]))
    return plain(way, golden["request"], golden["answer"])
