"""Results of batches as people found them: each line counts by itself, and none spoils the others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from tests.conftest import StartsGateways
from tests.fakes import forms
from tests.fakes.scripted import Scripted, Wire, answer, ok_json
from tests.flows.gateway_process import Gateway, eventually, records, settings

from .reports import MESSAGES, check, configuration, response

PRICE = {"input": 0.5, "cached_input": 0.05, "output": 5}
"""Of the variant `batch`; what it does not name costs as in the standard price."""


class Row(NamedTuple):
    """The results of a batch, and what has to be recorded."""

    name: str
    source: str
    """Where people reported it: repositories and numbers."""
    rule: str
    """Who says what is right."""
    path: str
    results: tuple[Any, ...]
    """The answer to each request: its body, or the bytes of the whole line."""
    expected: Mapping[str, Any]
    more: Mapping[str, Any] = {}
    """Further members of the batch object."""


def chat(prompt: int, output: int, **details: int) -> dict[str, Any]:
    """An answer with this usage; `details` are those of the completion."""
    choice = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
    usage = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output,
             "completion_tokens_details": details}  # fmt: skip
    return {"id": "c", "object": "chat.completion", "model": "up", "choices": [choice], "usage": usage}


def costs(prompt: int, output: int) -> float:
    return (prompt * 0.5 + output * 5) / 1e6


CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
WHOLE = {"status": 200, "usage_source": "reported"}
EACH = "OpenAI's guide on batches: each line of the output file is the answer to one request"
ROWS = [
    Row(
        "reasoning of the lines", "BerriAI/litellm#37208", EACH, CHAT,
        (chat(10, 500, reasoning_tokens=300), chat(20, 700, reasoning_tokens=600)),
        {**WHOLE, "prompt_tokens": 30, "completion_tokens": 1200, "reasoning_tokens": 900,
         "cost_usd": costs(30, 1200)},
    ),
    Row(
        "lines of Responses", "BerriAI/litellm#35367", "openai-openapi: a batch may be of /v1/responses", RESPONSES,
        (response({"input_tokens": 10, "output_tokens": 40, "total_tokens": 50}),
         response({"input_tokens": 15, "output_tokens": 60, "total_tokens": 75})),
        {**WHOLE, "prompt_tokens": 25, "completion_tokens": 100, "cost_usd": costs(25, 100)},
    ),
    Row(
        "a sum in the batch that is not that of its lines", "BerriAI/litellm#14884",
        f"{EACH}; the object in the thread has 0 `prompt_tokens` and all in `total_tokens`", CHAT,
        (chat(10, 40), chat(15, 60)),
        {**WHOLE, "prompt_tokens": 25, "completion_tokens": 100, "cost_usd": costs(25, 100)},
        {"usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 51_279}},
    ),
    Row(
        "an empty body among good lines", "BerriAI/litellm#37457",
        "docs/formats.md: it is charged its share of the reservation, and the others what they report", CHAT,
        (chat(3000, 40), {}, chat(4000, 60)), {"status": 200, "usage_source": "estimated"},
    ),
    Row(
        "a line that is no JSON", "BerriAI/litellm#37457",
        "docs/formats.md: it is charged its share of the reservation, and the others what they report", CHAT,
        (chat(3000, 40), b'{"id": "b", "custom_id"\n', chat(4000, 60)), {"status": 200, "usage_source": "estimated"},
    ),
    Row(
        "a line that is no UTF-8", "BerriAI/litellm#37457",
        "docs/formats.md: it is charged its share of the reservation, and the others what they report", CHAT,
        (chat(3000, 40), b'{"id": "\xff\xfe"}\n', chat(4000, 60)), {"status": 200, "usage_source": "estimated"},
    ),
    Row(
        "requests that failed", "BerriAI/litellm#37208",
        "OpenAI's guide on batches: only completed requests are billed", CHAT,
        (chat(10, 40), b'{"custom_id": "1", "response": {"status_code": 500, "body": {"error": {}}}, "error": null}\n'),
        {**WHOLE, "prompt_tokens": 10, "completion_tokens": 40, "cost_usd": costs(10, 40)},
    ),
]  # fmt: skip


def results_of(row: Row) -> bytes:
    """The output file."""
    lines = []
    for number, each in enumerate(row.results):
        whole = {"id": f"b{number}", "custom_id": str(number), "error": None,
                 "response": {"status_code": 200, "request_id": "r", "body": each}}  # fmt: skip
        lines.append(each if isinstance(each, bytes) else json.dumps(whole).encode() + b"\n")
    return b"".join(lines)


def batch_of(number: int, **more: Any) -> dict[str, Any]:
    head = {"id": f"batch_{number}", "object": "batch", "endpoint": ROWS[number].path, "created_at": 1}
    return {**head, "input_file_id": f"file-in-{number}", "completion_window": "24h", "metadata": None, **more}


async def upstream_of_batches(wire: Wire) -> None:
    """The number of a row is in the ids of its file and of its batch."""
    request = wire.request
    number = int((re.search(rb"row-(\d+)", request.body) or re.search(rb"in-(\d+)", request.body) or
                  re.search(rb"(?:in-|out-|batch_)(\d+)", request.path.encode()) or [b"", b"0"])[1])  # fmt: skip
    if request.path.endswith("/content"):
        await answer(results_of(ROWS[number]), headers=[("Content-Type", "application/octet-stream")])(wire)
    elif "/files" in request.path:
        file = {"id": f"file-in-{number}", "object": "file", "bytes": 1, "created_at": 1, "purpose": "batch"}
        await ok_json({**file, "filename": "a.jsonl", "status": "processed"})(wire)
    elif request.method == "POST":
        await ok_json(batch_of(number, status="validating"))(wire)
    else:
        done = {"status": "completed", "output_file_id": f"file-out-{number}", **ROWS[number].more}
        await ok_json(batch_of(number, **done))(wire)


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways) -> Iterator[Gateway]:
    with Scripted(always=upstream_of_batches) as upstream:
        whole = configuration(upstream.url)
        yield start_shared_gateway(settings(upstream.url, **whole | {"files": {"upstream": "main"}}))


@pytest.fixture(scope="module")
def calls(gateway: Gateway) -> list[str]:
    """The id of the call that made each row's batch; they run side by side."""
    return [begin(gateway, number) for number in range(len(ROWS))]


def begin(gateway: Gateway, number: int) -> str:
    row = ROWS[number]
    asked: Mapping[str, Any] = (
        {"model": "chat", "messages": MESSAGES, "user": f"row-{number}"}
        if row.path == CHAT
        else {"model": "responses", "input": "Hello", "user": f"row-{number}"}
    )
    lines = [
        {"custom_id": str(each), "method": "POST", "url": row.path, "body": asked} for each in range(len(row.results))
    ]
    body = b"".join([json.dumps(line).encode() + b"\n" for line in lines])
    uploaded = gateway.send("POST", "/v1/files", forms.form(("purpose", "batch"), ("file", body)), headers=forms.TYPE)
    asked_batch = {"input_file_id": uploaded.json["id"], "endpoint": row.path, "completion_window": "24h"}
    made = gateway.post("/v1/batches", asked_batch)
    assert made.status == 200, made
    return made.id


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.name}: {row.source}")
def test_each_line_counts_by_itself(gateway: Gateway, calls: list[str], row: Row) -> None:
    (record,) = eventually(lambda: records(gateway, calls[ROWS.index(row)]), timeout_s=60)
    check(record, row.expected)
    reported = [each for each in row.results if isinstance(each, dict) and each]
    least = [sum([usage["usage"].get(name) or 0 for usage in reported]) for name in ("prompt_tokens", "input_tokens")]
    assert record["prompt_tokens"] >= max(least)
