"""OpenAI's Realtime API (openai-python, `types/realtime/`): events of JSON over a WebSocket, in both directions.

Usage is in each `response.done`, and in `conversation.item.input_audio_transcription.completed`, whose model is the one
of the transcription. Cached audio tokens are cached tokens, `cached_audio`: `audio_in` has the others.

An event of a client with audio for the buffer is at most 15 MiB long, as OpenAI's `input_audio_buffer.append` is
(openai-python, `input_audio_buffer_append_event.py`), and its audio is not read. Another event is shorter, and each has
a bounded number of members: to read and write 15 MiB of text takes hundreds of milliseconds, which hold up other calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gateway import units
from gateway.api import validation_errors
from gateway.api.prompt_tokens import IMAGE_TOKENS, FindsCounter
from gateway.errors import GatewayError, InvalidRequest
from gateway.formats import reported_usage
from gateway.formats.format import Format
from gateway.formats.openai import completions
from gateway.formats.openai.reader import own_counts
from gateway.formats.reader import value_at
from gateway.records import Params, Usage

KEY_PROTOCOL = "openai-insecure-api-key."
"""The prefix of a browser's key among its subprotocols (openai-realtime-api-beta, `lib/api.js`)."""
PROTOCOL = "realtime"
BETA_PROTOCOL = "openai-beta.realtime-v1"
BETA = "realtime=v1"
UPSTREAM_PROTOCOLS = frozenset({PROTOCOL, BETA_PROTOCOL})

CREATE = "response.create"
UPDATE = "session.update"
UPDATED = "session.updated"
CREATED = "response.created"
DONE = "response.done"
UPDATES = frozenset({UPDATE, "transcription_session.update"})
"""The second is that of the beta, for sessions that only transcribe (openai-python, `types/beta/realtime/`)."""
UPDATED_TRANSCRIPTION = "transcription_session.updated"
APPEND, COMMIT, CLEAR = "input_audio_buffer.append", "input_audio_buffer.commit", "input_audio_buffer.clear"
CLEARED, COMMITTED = "input_audio_buffer.cleared", "input_audio_buffer.committed"
SPEECH_STARTED, SPEECH_STOPPED = "input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped"
ENDS_SPEECH = frozenset({SPEECH_STOPPED, "input_audio_buffer.timeout_triggered"})
"""Events behind which an upstream may answer by itself (openai-python, `types/realtime/`)."""
_TRANSCRIPTION = "conversation.item.input_audio_transcription."
TRANSCRIBED, TRANSCRIPTION_FAILED = f"{_TRANSCRIPTION}completed", f"{_TRANSCRIPTION}failed"
TRANSCRIPT_DELTAS = frozenset({f"{_TRANSCRIPTION}delta", f"{_TRANSCRIPTION}segment"})

OF_AUDIO = frozenset({
    CLEARED, COMMITTED, SPEECH_STARTED, SPEECH_STOPPED, TRANSCRIBED, TRANSCRIPTION_FAILED, *TRANSCRIPT_DELTAS,
})  # fmt: skip
"""Events of an upstream about the client's audio."""

WITH_FATE = frozenset({CREATE, COMMIT, *UPDATES})
"""Events of a client that are charged, or change a price, unless the upstream refuses them by their id."""

OWN_ID = "event_gateway_"
"""Begins the ids that the gateway gives to events."""

INPUT_TOKEN_MS, OUTPUT_TOKEN_MS = 100, 50
"""Milliseconds of audio in one token (platform.openai.com, guide "Managing costs" of Realtime)."""

BYTES_PER_S = 48_000
"""Bytes per second of audio of 16 bits at 24 kHz, which a session has unless it names another format (openai-python,
`types/realtime/realtime_audio_formats.py`)."""
_SLOW_BYTES_PER_S = 8_000
"""Bytes per second of G.711: 8 bits at 8 kHz."""
_SLOW = ("pcmu", "pcma", "g711")

MAX_CHARACTERS = 15 * 2**20
MAX_READ, MAX_READ_WIDE = 4 * 2**20, 2**20
"""Characters of an event that is read as a whole, where all are ASCII and where not all are. An escape is one, too."""
MAX_EVENT_ID = 512
"""Characters of an event's id, which is held until the upstream answers (openai-openapi, `event_id`)."""
_BESIDE_AUDIO = 4096
"""Characters of an event without its audio, which is not read."""
MAX_MEMBERS = 20_000
"""Signs of an event that begin or separate its members, or escape a letter. Their names are compared in all spellings,
which is the slowest step of reading one."""
_SIGNS = (",", ":", "[", "{", "\\")
_AUDIO = re.compile(r'"audio"[ \t\r\n]*+:[ \t\r\n]*+"')

OUTPUT_LIMITS = ("max_output_tokens", "max_response_output_tokens", "max_tokens", "max_response_output_token")
"""The output limit in settings of a session or a response; the second name is that of the beta
(openai-python, `types/beta/realtime/`), the others are Qwen-Omni's (alibabacloud.com, Realtime: client events)."""
NO_LIMIT = "inf"

_WITHOUT_MODELS = frozenset({"tools", "prompt", "metadata", "instructions"})
"""Members of a session or a response below which a `model` is the client's own text."""

MAX_DEPTH = 16
Event = Mapping[str, Any]


class ResponseEnd(NamedTuple):
    id: str | None
    usage: Usage | None
    is_failed: bool


def read_client_event(text: str) -> dict[str, Any]:
    """A client's event. Raises `InvalidRequest` if it is too large, is no JSON object, or names a member twice, which
    servers read differently."""
    if len(text) > MAX_MEMBERS:
        if (event := _with_audio(text)) is not None:
            return event
        most = MAX_READ if text.isascii() else MAX_READ_WIDE
        if len(text) > most or sum(map(text.count, _SIGNS)) > MAX_MEMBERS:
            raise _too_large()
    return _parsed(text)


def _with_audio(text: str) -> dict[str, Any] | None:
    """A long event with audio for the buffer, which is a text without escapes; None: it is another one."""
    if not text.isascii() or (found := _AUDIO.search(text, 0, _BESIDE_AUDIO)) is None:
        return None
    start = found.end()
    end = text.find('"', start)
    around = text[:start] + text[end:]
    if end < 0 or len(around) > _BESIDE_AUDIO or "\\" in around or text.find("\\", start, end) >= 0:
        return None
    event = _parsed(around)
    if event["type"] != APPEND or event.get("audio") != "" or around.count('"audio"') != 1:
        return None
    if len(text) > MAX_CHARACTERS:
        raise _too_large()
    event["audio"] = text[start:end]
    return event


def _too_large() -> InvalidRequest:
    return InvalidRequest(
        f"The event is too large: it may have about {MAX_MEMBERS // 2} members, and {MAX_READ} characters, "
        f"{MAX_READ_WIDE} if they are not all ASCII, or {MAX_CHARACTERS} with audio for the buffer. Send it in parts.",
        code="event_too_large",
    )


def _parsed(text: str) -> dict[str, Any]:
    """Returns the event. Raises `InvalidRequest` if it is no JSON object with a type."""
    try:
        event = json.loads(text, object_pairs_hook=_distinct)
    except RecursionError:
        raise InvalidRequest("The event is nested too deeply.", code="invalid_json") from None
    except ValueError:
        raise InvalidRequest("The event could not be parsed as JSON.", code="invalid_json") from None
    if not isinstance(event, dict) or not isinstance(event.get("type"), str):
        raise InvalidRequest("Expected a JSON object with a 'type'.", param="type", code="invalid_json")
    if isinstance(event_id := event.get("event_id"), str) and len(event_id) > MAX_EVENT_ID:
        raise InvalidRequest(
            f"Invalid 'event_id': it may have {MAX_EVENT_ID} characters.", param="event_id", code="event_too_large"
        )
    return event


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InvalidRequest("A member is given more than once in the event.", code="duplicate_parameter")
    return found


def write_event(event: Mapping[str, Any]) -> str:
    audio = event.get("audio")
    if isinstance(audio, str) and len(audio) > MAX_READ and audio.isascii() and not ('"' in audio or "\\" in audio):
        around = json.dumps({**event, "audio": ""}, separators=(",", ":"))
        if around.count('"audio":""') == 1:  # it came in one piece, too: to look at each letter takes long
            return around.replace('"audio":""', f'"audio":"{audio}"')
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
    found = value_at(event, ("response", "id")) if isinstance(event.get("response"), dict) else event.get("response_id")
    return found if isinstance(found, str) else None


def read_end(event: Mapping[str, Any]) -> ResponseEnd:
    response = event.get("response")
    if not isinstance(response, dict):
        return ResponseEnd(None, None, is_failed=False)
    return ResponseEnd(response_id(event), reported(response.get("usage")), response.get("status") == "failed")


def reported(report: Any) -> Usage | None:
    """The `usage` of a response (openai-python, `types/realtime/realtime_response_usage.py`; Qwen-Omni's details have
    names in the plural: alibabacloud.com, Realtime: server events); None: it has none."""
    if (tokens := reported_usage.input_and_output(report)) is None:
        return None
    given = report.get("input_token_details") or report.get("input_tokens_details")
    made = report.get("output_token_details") or report.get("output_tokens_details")
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
    searches = units.counts({name: count for name, count in own_counts(report).items() if name in units.UNITS})
    return reported_usage.coherent(Usage(*tokens, cached, source="reported", more=units.highest(more, searches)))


def transcriber_of(session: Any) -> tuple[bool, str | None]:
    """Whether these settings of a session name or remove the model that transcribes its audio; and the model, None:
    there is none, an empty name: the upstream chooses it."""
    places = ((value_at(session, ("audio", "input")), "transcription"), (session, "input_audio_transcription"))
    given = [holder[name] for holder, name in places if isinstance(holder, dict) and name in holder]
    if not given:
        return False, None
    found = given[0]
    model = value_at(found, ("model",))
    if isinstance(model, str):
        return True, model
    return found is None, "" if isinstance(found, dict) else None


def answers_speech(session: Any) -> bool | None:
    """Whether an upstream with these settings answers a speech by itself; None: they do not name it."""
    for holder in (value_at(session, ("audio", "input")), session):
        if isinstance(found := value_at(holder, ("turn_detection", "create_response")), bool):
            return found
    return None


def asked_transcriber(event: Mapping[str, Any]) -> tuple[bool, str | None]:
    """`transcriber_of` the settings in a client's event. Raises `InvalidRequest` for what servers may read
    differently."""
    session = event.get("session")
    sound = value_at(session, ("audio", "input"))
    if isinstance(session, dict) and "input_audio_transcription" in session and value_at(sound, ("transcription",)):
        raise InvalidRequest(
            "Give 'audio.input.transcription' or 'input_audio_transcription', not both.",
            param="session.input_audio_transcription",
            code="duplicate_parameter",
        )
    return transcriber_of(session)


def audio_rates(settings: Mapping[str, Any]) -> tuple[int, int]:
    """The bytes of a second of audio, of the client and of the upstream, that these settings of a session or a response
    name; those of the default where they name none."""
    given = value_at(settings, ("audio", "input", "format")), settings.get("input_audio_format")
    made = value_at(settings, ("audio", "output", "format")), settings.get("output_audio_format")
    return min(map(_rate_of, given)), min(map(_rate_of, made))


def _rate_of(audio_format: Any) -> int:
    name, rate = value_at(audio_format, ("type",)), value_at(audio_format, ("rate",))
    name = audio_format if isinstance(audio_format, str) else name
    if isinstance(name, str) and any(each in name.lower() for each in _SLOW):
        return _SLOW_BYTES_PER_S
    return max(_SLOW_BYTES_PER_S, min(BYTES_PER_S, 2 * rate)) if type(rate) is int else BYTES_PER_S


def audio_ms(characters: int, bytes_per_s: int) -> int:
    """The length of audio with this number of characters of base64, rounded up."""
    return -(-characters * 750 // bytes_per_s)


class Added(NamedTuple):
    """The part of the prompt of later responses that is from one event of a client."""

    texts: str
    audio_characters: int
    picture_tokens: int


def added(event: Mapping[str, Any]) -> Added:
    """Measures the texts, audio and pictures of a client's event that is not audio of the buffer."""
    texts: list[str] = []
    audio = pictures = 0
    waiting: list[tuple[str, Any]] = [("", event)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(value.items())
        elif isinstance(value, list):
            waiting.extend([(name, each) for each in value])
        elif isinstance(value, str) and name == "audio":
            audio += len(value)
        elif isinstance(value, str) and name == "image_url":
            pictures += IMAGE_TOKENS
        elif isinstance(value, str):
            texts.append(value)
    return Added(" ".join(texts), audio, pictures)


def shown_text(event: Mapping[str, Any]) -> str:
    """The whole text that an event behind the pieces of an output repeats; empty: it has none."""
    found = next((event[name] for name in ("text", "transcript", "arguments") if name in event), "")
    return found if isinstance(found, str) else ""


def error_about(event: Mapping[str, Any]) -> str | None:
    """The id of the client's event that an `error` is about."""
    about = value_at(event, ("error", "event_id"))
    return about if isinstance(about, str) else None


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
    operation="realtime",
    read=_no_body,
    facts=completions.facts,
    usage=reported,
    has_model_in_path=True,
    may_reason=True,
    request_headers=frozenset({"openai-beta", "openai-safety-identifier"}),
)
