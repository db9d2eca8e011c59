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

from gateway.formats import reported_usage
from gateway.formats.format import Format, Writer
from gateway.formats.openai.frame import Frame
from gateway.formats.table import FORMATS
from gateway.records import Usage
from gateway.wings.translate import chat_request, messages_request, responses_request
from gateway.wings.translate.chat_answer import ChatWriter
from gateway.wings.translate.messages_answer import MessageWriter
from gateway.wings.translate.responses_answer import ResponseWriter

FOLDER = Path(__file__).parents[2] / "recorded" / "translate"
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


def writer(way: str, request: dict[str, Any]) -> Writer:
    """The writer of the answer to this request."""
    shows_usage = bool((request.get("stream_options") or {}).get("include_usage"))
    frame = Frame(BASE, CREATED, "m", PROMPT_TOKENS, shows_usage)
    make = {"responses": ResponseWriter, "messages": MessageWriter}.get(way, ChatWriter)
    made: Writer = make(asked(way, request), frame)
    return made


def target(way: str) -> Format:
    """The upstream's format."""
    return FORMATS["messages" if way == "anthropic" else "chat"]


def written(way: str, request: dict[str, Any], objects: list[dict[str, Any]]) -> tuple[bytes, Writer, Usage]:
    """The client's events for these objects of the upstream, but for the end; their writer; the usage."""
    make = target(way).reader
    assert make is not None
    reader, made, usage = make(), writer(way, request), Usage(PROMPT_TOKENS, COMPLETION_TOKENS)
    shown = b""
    for each in objects:
        usage = reported_usage.coherent(reader.facts(each) or usage)
        shown += made.feed(reader.events(each), reader.model)
    return shown + made.feed(reader.rest(), reader.model) + made.end(), made, usage


def plain(way: str, request: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """The client's answer for a plain one of the upstream."""
    _, made, usage = written(way, request, [answer])
    return made.whole(usage)


def streamed(way: str, request: dict[str, Any], chunks: list[dict[str, Any]]) -> bytes:
    """The client's stream for these chunks or events of the upstream."""
    shown, made, usage = written(way, request, chunks)
    return shown + made.close(usage)


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
