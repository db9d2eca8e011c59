"""The questions to a hook, its answers, and the time for which it is not asked after failures. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from gateway.api import json_document
from gateway.config.sections import BAD_SIGNS
from gateway.errors import InvalidRequest
from gateway.quota.pricing import usd
from gateway.records import Call, Record
from gateway.reports.calls import tags_of, timeline_of
from gateway.upstream import circuit_breaker
from gateway.upstream.circuit_breaker import Circuit, CircuitEvent, CircuitState

VERSION = 1
"""The version of what is posted: members may be added to it, none taken away or changed."""

MAX_MESSAGE = 1000
_CODE = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")


class Verdict(NamedTuple):
    """The answer of a hook."""

    action: Literal["allow", "refuse", "replace"]
    status: int = 403
    code: str = ""
    """Empty: the code of all refusals by hooks."""
    message: str = "The gateway's operator does not permit this request."
    body: bytes = b""
    """The JSON in place of the client's."""
    is_stream: bool = False
    """Whether that asks for a stream."""


def read_verdict(raw: bytes) -> Verdict:
    """Raises `ValueError` with what is wrong."""
    try:
        document = json_document.parse(raw)
    except InvalidRequest:
        raise ValueError("it is not one object of JSON") from None
    members = document.members
    match members.get("action"):
        case "allow":
            return Verdict("allow")
        case "refuse":
            return _refusal(members)
        case "replace":
            if not isinstance(members.get("body"), dict):
                raise ValueError("action replace needs a body that is an object")
            start, end = json_document.spans(document)["body"]
            body = document.text[start:end].encode()
            return Verdict("replace", body=body, is_stream=members["body"].get("stream") is True)
    raise ValueError("its action is none of allow, refuse and replace")


def _refusal(members: Mapping[str, Any]) -> Verdict:
    default = Verdict("refuse")
    status, code, message = (members.get(name, getattr(default, name)) for name in ("status", "code", "message"))
    if type(status) is not int or not 400 <= status <= 499:
        raise ValueError("its status is no number from 400 to 499")
    if not isinstance(code, str) or ("code" in members and _CODE.fullmatch(code) is None):
        raise ValueError("its code is no word of small letters, digits, _ . and -")
    if not isinstance(message, str) or not 1 <= len(message) <= MAX_MESSAGE:
        raise ValueError(f"its message is no text of 1 to {MAX_MESSAGE} characters")
    return Verdict("refuse", status, code, BAD_SIGNS.sub(" ", message))


def question(hook: str, call: Call, body: Sequence[bytes | bytearray | memoryview] | None) -> bytes:
    """The question about a call; `body` is the client's JSON, None: it is not shown."""
    head = {"type": "before_call", "version": VERSION, "hook": hook, "call": facts(call)}
    text = json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return text if body is None else b"".join([text[:-1], b',"body":', *body, b"}"])


def facts(call: Call) -> dict[str, Any]:
    """The facts of a call that is not reserved yet."""
    params = call.params
    return {
        "id": call.id, "time": call.started, "endpoint": call.endpoint, "model": params.model,
        "served_model": call.model_name, "key": call.key.id, "team": call.key.team, "owner": call.key.owner,
        "labels": dict(call.key.labels), "user": call.user, "tags": tags_of(call.tags), "remote": call.remote,
        "stream": params.stream, "prompt_tokens": params.prompt_tokens, "output_limit": params.output_limit,
        "candidates": params.candidates, "requests": params.lines or 1,
    }  # fmt: skip


def report(hook: str, record: Record, answer: Mapping[str, Any] | None = None) -> bytes:
    """The message about a call that has ended; with its answer where the hook gets that."""
    usage = record.usage
    call = {
        "id": record.id, "time": record.time, "key": record.key, "team": record.team, "endpoint": record.endpoint,
        "model": record.model, "routed_model": record.routed_model, "returned_model": record.returned_model,
        "upstream": record.upstream, "status": record.status, "stream": record.stream, "ended": record.ended,
        "truncated": record.truncated, "attempts": record.attempts, "failed": record.failed.split(),
        "prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens, "reasoning_tokens": usage.reasoning_tokens, "usage_source": usage.source,
        "units": dict(usage.more), "cost_usd": None if record.cost_nusd is None else usd(record.cost_nusd),
        "first_byte_s": record.first_byte_s, "duration_s": record.duration_s, "user": record.user,
        "tags": tags_of(record.tags), "client_request_id": record.client_request_id,
        "timeline": timeline_of(record.timeline), "model_reason": record.model_reason, "amended": record.amended,
    }  # fmt: skip
    head = {"type": "after_call", "version": VERSION, "hook": hook, "call": call}
    head |= {} if answer is None else {"answer": answer}
    return json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


class Breaker:
    """Whether a hook is asked about the calls of a key, by the rules of circuits of upstreams: as long as one key's
    calls alone have failed, it is asked about those of others."""

    def __init__(self) -> None:
        self._circuit: Circuit | None = None

    def admits(self, caller: str, now: float) -> bool:
        """Whether a call of this key may ask now; `note` gets what becomes of it. After a pause one call may, and the
        others wait for its end."""
        if not circuit_breaker.binds(self._circuit, caller):
            return True
        if not circuit_breaker.admits(self._circuit, now):
            return False
        if self._circuit is not None and self._circuit.state is CircuitState.OPEN:
            self._circuit = circuit_breaker.after(self._circuit, CircuitEvent.TIMER, now)
        self._circuit = circuit_breaker.after(self._circuit, CircuitEvent.BEGIN, now, caller)
        return True

    def note(self, event: CircuitEvent, caller: str, began: float, now: float) -> None:
        """The end of a question that began at this time; the caller is empty where no request can be the cause."""
        if circuit_breaker.is_current(self._circuit, began):
            self._circuit = circuit_breaker.after(self._circuit, event, now, caller)
