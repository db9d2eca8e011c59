"""Clouds on loopback: token endpoints, metadata servers and upstreams that hold requests against the vendors' rules."""

from __future__ import annotations

import json
import time
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.fakes.scripted import Behaviour, Request, Wire, answer

ACCESS, SECRET, SESSION = "AKIAFAKE", "a-secret-of-aws", "a-session-of-aws"


def token_reply(token: str, lives_s: float = 3600, **more: Any) -> Behaviour:
    return answer(json.dumps({"access_token": token, "token_type": "Bearer", "expires_in": lives_s, **more}).encode())


def form_of(request: Request) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(request.body.decode()).items()}


def numbered(make: Callable[[int], Behaviour]) -> Behaviour:
    """The first answer is that of 1, the next that of 2, ..."""
    count = 0

    async def behaviour(wire: Wire) -> None:
        nonlocal count
        count += 1
        await make(count)(wire)

    return behaviour


def aws_keys(number: int, lives_s: float) -> dict[str, str]:
    """Temporary credentials, as container and instance metadata have them."""
    end = datetime.fromtimestamp(time.time() + lives_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "AccessKeyId": f"{ACCESS}{number}", "SecretAccessKey": f"{SECRET}-{number}", "Token": f"{SESSION}-{number}",
        "Expiration": end,
    }  # fmt: skip


def sts_answer(number: int, lives_s: float) -> bytes:
    """STS' answer to AssumeRole and AssumeRoleWithWebIdentity."""
    keys = aws_keys(number, lives_s)
    inner = "".join([f"<{name}>{value}</{name}>" for name, value in keys.items()]).replace("Token>", "SessionToken>")
    parts = [f"<{name}Result><Credentials>{inner}</Credentials></{name}Result>" for name in ("AssumeRole",)]
    space = "https://sts.amazonaws.com/doc/2011-06-15/"
    return f'<AssumeRoleResponse xmlns="{space}">{"".join(parts)}</AssumeRoleResponse>'.encode()


def signature_of(request: Request, secret: str, service: str, region: str) -> str:
    """The authorization that botocore computes for a request that was received, with this secret."""
    sent = request.headers
    named = sent["authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
    again = AWSRequest(
        request.method, f"http://{sent['host']}{request.path}", data=request.body,
        headers={name: sent[name] for name in named if name not in ("x-amz-date", "x-amz-security-token")},
    )  # fmt: skip
    access = sent["authorization"].partition("Credential=")[2].partition("/")[0]
    signer = SigV4Auth(Credentials(access, secret, sent.get("x-amz-security-token")), service, region)
    moment = datetime.strptime(sent["x-amz-date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    again.context["timestamp"] = sent["x-amz-date"]
    assert abs((datetime.now(UTC) - moment).total_seconds()) < 300, "AWS refuses signatures of another time"
    again.headers["X-Amz-Date"] = sent["x-amz-date"]
    if "x-amz-security-token" in sent:
        again.headers["X-Amz-Security-Token"] = sent["x-amz-security-token"]
    text = signer.string_to_sign(again, signer.canonical_request(again))
    prefix = sent["authorization"].rpartition("Signature=")[0]
    return f"{prefix}Signature={signer.signature(text, again)}"


def message_of(headers: Iterable[tuple[str, str]], payload: bytes) -> bytes:
    """One message of the event stream (AWS, "Event Stream Encoding"): lengths, their sum, headers, payload, the sum."""
    lines = b"".join(
        [
            bytes([len(name)]) + name.encode() + b"\x07" + len(value).to_bytes(2) + value.encode()
            for name, value in headers
        ]
    )
    start = (len(lines) + len(payload) + 16).to_bytes(4) + len(lines).to_bytes(4)
    start += zlib.crc32(start).to_bytes(4)
    whole = start + lines + payload
    return whole + zlib.crc32(whole).to_bytes(4)


def chunk_of(event: Any) -> bytes:
    """One event of Claude as Bedrock sends it."""
    payload = {"bytes": b64encode(json.dumps(event).encode()).decode(), "p": "abcdefgh"}
    headers = (":event-type", "chunk"), (":content-type", "application/json"), (":message-type", "event")
    return message_of(headers, json.dumps(payload).encode())


def exception_of(kind: str, text: str) -> bytes:
    headers = (":exception-type", kind), (":content-type", "application/json"), (":message-type", "exception")
    return message_of(headers, json.dumps({"message": text}).encode())


def message_events(text: str = "Hello") -> list[dict[str, Any]]:
    """The events of one answer of Claude."""
    usage = {"input_tokens": 9, "output_tokens": 1}
    message: dict[str, Any] = {
        "id": "msg_bdrk_1", "type": "message", "role": "assistant", "model": "claude", "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": usage,
    }  # fmt: skip
    return [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None},
         "usage": {"output_tokens": 3}},
        {"type": "message_stop", "amazon-bedrock-invocationMetrics": {"inputTokenCount": 9, "outputTokenCount": 3}},
    ]  # fmt: skip


def plain_message(text: str = "Hello") -> dict[str, Any]:
    """The same as a plain answer."""
    return {
        "id": "msg_bdrk_1", "type": "message", "role": "assistant", "model": "claude",
        "content": [{"type": "text", "text": text}], "stop_reason": "end_turn", "stop_sequence": None,
        "usage": {"input_tokens": 9, "output_tokens": 3},
    }  # fmt: skip
