"""OpenAI's Realtime API (openai-python, `types/realtime/`): events of JSON over a WebSocket, in both directions.

Usage is in each `response.done`, and in `conversation.item.input_audio_transcription.completed`, whose model is the one
of the transcription. Cached audio tokens are cached tokens, `cached_audio`: `audio_in` has the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gateway import units
from gateway.api import validation_errors
from gateway.api.prompt_tokens import FindsCounter
from gateway.errors import GatewayError, InvalidRequest
from gateway.formats import reported_usage
from gateway.formats.format import Format
from gateway.records import Params, Usage

from . import plain, transcriptions

KEY_PROTOCOL = "openai-insecure-api-key."
"""The prefix of a browser's key among its subprotocols (openai-realtime-api-beta, `lib/api.js`)."""
PROTOCOL = "realtime"
BETA_PROTOCOL = "openai-beta.realtime-v1"
BETA = "realtime=v1"
"""In the header OpenAI-Beta."""
UPSTREAM_PROTOCOLS = frozenset({PROTOCOL, BETA_PROTOCOL})
"""Subprotocols that upstreams get."""

CREATE = "response.create"
UPDATE = "session.update"
UPDATED = "session.updated"
CREATED = "response.created"
DONE = "response.done"
TRANSCRIBED = "conversation.item.input_audio_transcription.completed"

AUDIO_CHARACTERS = 3_200
"""Characters of base64 for one token of audio output: 50 ms of 16 bits at 24 kHz (platform.openai.com, guide "Managing
costs" of Realtime)."""

OUTPUT_LIMITS = ("max_output_tokens", "max_response_output_tokens")
"""The output limit in settings of a session or a response; the second name is that of the beta
(openai-python, `types/beta/realtime/`)."""
NO_LIMIT = "inf"

_WITHOUT_MODELS = frozenset({"tools", "prompt", "metadata", "instructions"})
"""Members of a session or a response below which a `model` is the client's own text."""

MAX_DEPTH = 16


Event = Mapping[str, Any]
"""An event of an upstream."""


class ResponseEnd(NamedTuple):
    """The content of `response.done` that is read."""

    id: str | None
    usage: Usage | None
    is_failed: bool


def read_client_event(text: str) -> dict[str, Any]:
    """A client's event. Raises `InvalidRequest` if it is not a JSON object, or names a member twice, which servers read
    differently."""
    try:
        event = json.loads(text, object_pairs_hook=_distinct)
    except RecursionError:
        raise InvalidRequest("The event is nested too deeply.", code="invalid_json") from None
    except ValueError:
        raise InvalidRequest("The event could not be parsed as JSON.", code="invalid_json") from None
    if not isinstance(event, dict) or not isinstance(event.get("type"), str):
        raise InvalidRequest("Expected a JSON object with a 'type'.", param="type", code="invalid_json")
    return event


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InvalidRequest("A member is given more than once in the event.", code="duplicate_parameter")
    return found


def read_upstream_event(text: str) -> Mapping[str, Any]:
    """An upstream's event; empty if it is none that can be read."""
    try:
        event = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return event if isinstance(event, dict) else {}


def write_event(event: Mapping[str, Any]) -> str:
    """A client's event that had to be changed."""
    return json.dumps(event, separators=(",", ":"))


def settings_of(event: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The settings in a client's event: of the session, or of one response."""
    return [event[name] for name in ("session", "response") if isinstance(event.get(name), dict)]


def output_limit(settings: Mapping[str, Any]) -> tuple[str, int | None] | None:
    """The name and the value of the output limit in these settings, None for no limit; or None: they have none.
    Raises `InvalidRequest` for what servers may read differently."""
    given = [name for name in OUTPUT_LIMITS if name in settings]
    if not given:
        return None
    if len(given) > 1:
        raise InvalidRequest(
            f"Give '{given[0]}' or '{given[1]}', not both.", param=given[1], code="duplicate_parameter"
        )
    name, value = given[0], settings[given[0]]
    if value is None or value == NO_LIMIT:
        return name, None
    if type(value) is not int:
        raise validation_errors.wrong_type(name, f"an integer or '{NO_LIMIT}'", value)
    if value < 1:
        raise validation_errors.below(name, value, 1)
    return name, value


def asked_output(event: Mapping[str, Any], part: str) -> tuple[bool, int | None]:
    """Whether this part of an event has an output limit, and which. Raises `InvalidRequest`."""
    settings = event.get(part)
    found = output_limit(settings) if isinstance(settings, dict) else None
    return found is not None, None if found is None else found[1]


def named_models(settings: dict[str, Any], depth: int = 0) -> Iterator[tuple[dict[str, Any], bool]]:
    """Each object of these settings with a `model` that is a text, and whether it is the session's own. Raises
    `InvalidRequest` where they are nested too deeply."""
    if depth > MAX_DEPTH:
        raise InvalidRequest("The settings are nested too deeply.", code="invalid_value")
    if isinstance(settings.get("model"), str):
        yield settings, depth == 0
    for name, value in settings.items():
        if isinstance(value, dict) and name not in _WITHOUT_MODELS:
            yield from named_models(value, depth + 1)


def response_id(event: Mapping[str, Any]) -> str | None:
    """The id of the response that an upstream's event belongs to."""
    response = event.get("response")
    found = response.get("id") if isinstance(response, dict) else event.get("response_id")
    return found if isinstance(found, str) else None


def read_end(event: Mapping[str, Any]) -> ResponseEnd:
    """Of `response.done`."""
    response = event.get("response")
    if not isinstance(response, dict):
        return ResponseEnd(None, None, is_failed=False)
    return ResponseEnd(response_id(event), reported(response.get("usage")), response.get("status") == "failed")


def reported(report: Any) -> Usage | None:
    """The `usage` of a response (openai-python, `types/realtime/realtime_response_usage.py`); None: it has none."""
    if (tokens := reported_usage.input_and_output(report)) is None:
        return None
    given, made = report.get("input_token_details"), report.get("output_token_details")
    cached = reported_usage.detail(given, "cached_tokens")
    of_cached = given.get("cached_tokens_details") if isinstance(given, dict) else None

    def fresh(kind: str) -> int:
        return max(0, reported_usage.detail(given, kind) - reported_usage.detail(of_cached, kind))

    more = units.counts({
        "audio_in": fresh("audio_tokens"),
        "image_in": fresh("image_tokens"),
        "cached_audio": reported_usage.detail(of_cached, "audio_tokens"),
        "cached_image": reported_usage.detail(of_cached, "image_tokens"),
        "audio_out": reported_usage.detail(made, "audio_tokens"),
    })  # fmt: skip
    return reported_usage.coherent(Usage(*tokens, cached, source="reported", more=more))


def transcribed(event: Mapping[str, Any], model: str | None) -> Usage | None:
    """The usage of a transcription by this model; None: it has none."""
    usage = transcriptions.reported(event.get("usage"))
    if usage is None:
        return None
    return usage._replace(parts=(usage._replace(model=model or "transcription"),))


def error_event(error: GatewayError, event_id: str, about: str | None = None) -> str:
    """The `error` event for a client, with an id of its own, about the client's event with another id."""
    shown = {
        "type": error.type, "code": error.code, "message": error.message, "param": error.param, "event_id": about,
    }  # fmt: skip
    return json.dumps({"type": "error", "event_id": event_id, "error": shown})


def _no_body(raw: bytes, find_counter: FindsCounter) -> Params:
    raise InvalidRequest("Connect with a WebSocket: GET /v1/realtime?model=NAME.", code="websocket_required")


REALTIME = Format(
    name="realtime",
    path="/v1/realtime",
    upstream_path="/realtime",
    operation="realtime",
    read=_no_body,
    facts=plain.facts,
    usage=reported,
    has_model_in_path=True,
    request_headers=frozenset({"openai-beta", "openai-safety-identifier"}),
)
