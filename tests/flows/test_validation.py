"""The whole validation table through HTTP: what is refused never reaches the upstream, what is taken does as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection
from typing import Any

import pytest

from tests.api.params_table import MODELS, ROWS, Row
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import ok_json

from .client import Answer, ask
from .gateway_process import Gateway, key, model, secret, settings

PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions", "embeddings": "/v1/embeddings"}


def name_of(limits: Mapping[str, Any], kinds: list[Mapping[str, Any]]) -> str:
    """One key or model for each set of limits that the table has."""
    if limits not in kinds:
        kinds.append(limits)
    return f"limited-{kinds.index(limits)}"


KEYS: list[Mapping[str, Any]] = []
LIMITS: list[Mapping[str, Any]] = []
KEY_OF = {row.id: name_of(row.key, KEYS) for row in ROWS}
MODEL_OF = {row.id: name_of(row.model, LIMITS) for row in ROWS if row.model}


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    """Models that have limits are there beside the table's own, under names of their own, on every endpoint."""
    models = {name: model(endpoint, limits={}) for endpoint, name in MODELS.items()}
    models["m" * 256] = model("completions") | {"endpoints": list(PATHS)}
    for number, limits in enumerate(LIMITS):
        models[f"limited-{number}"] = model("chat", limits=dict(limits)) | {"endpoints": list(PATHS)}
    keys = [key(f"limited-{number}", limits=dict(limits)) for number, limits in enumerate(KEYS)]
    return start_shared_gateway(settings(shared_upstream.url, models=models, keys=keys))


@pytest.fixture(scope="module")
def connection(gateway: Gateway) -> Iterator[HTTPConnection]:
    made = HTTPConnection("127.0.0.1", gateway.port, timeout=10)
    yield made
    made.close()


def raw_of(row: Row) -> bytes:
    """The row's body; where the model has limits, its name becomes that of the model with these limits."""
    if row.id not in MODEL_OF:
        return row.raw
    return row.raw.replace(json.dumps(MODELS[row.endpoint]).encode(), json.dumps(MODEL_OF[row.id]).encode(), 1)


def put(connection: HTTPConnection, row: Row) -> Answer:
    headers = {"Authorization": f"Bearer {secret(KEY_OF[row.id])}", "Content-Type": "application/json"}
    return ask(connection, "POST", PATHS[row.endpoint], raw_of(row), headers)


@pytest.mark.parametrize("row", [row for row in ROWS if not row.is_taken], ids=lambda row: row.id)
def test_refused(row: Row, connection: HTTPConnection, upstream: ScriptedUpstream) -> None:
    answer = put(connection, row)
    assert answer.refusal == (400, "invalid_request_error", row.param, row.code)
    assert row.says in answer.error["message"]
    assert upstream.hits == 0


@pytest.mark.parametrize("row", [row for row in ROWS if row.is_taken], ids=lambda row: row.id)
def test_taken(row: Row, connection: HTTPConnection, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json())
    answer = put(connection, row)
    if answer.status == 404:  # a well-formed name of no model that there is
        assert answer.error["code"] == "model_not_found"
        return
    assert answer.status == 200, answer
    (sent,) = upstream.requests
    added = {"max_tokens", "max_completion_tokens", "stream_options"}
    if any(limits.get("max_tokens") for limits in (row.key, row.model)) or b'"stream": true' in row.raw:
        sent_members, members = sent.json, json.loads(raw_of(row))
        assert {name: value for name, value in sent_members.items() if name not in added - set(members)} == members
    else:
        assert sent.body == raw_of(row).removeprefix(b"\xef\xbb\xbf")


def test_no_row_was_charged(gateway: Gateway) -> None:
    """What is refused for its body has no usage record; that would be a call."""
    records = gateway.calls(limit=1000)
    assert {record["status"] for record in records} <= {200}
