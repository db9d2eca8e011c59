"""What a batch has used, by its results (gateway/relay/batch_results.py)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from typing import Any, cast

import pytest

from gateway.config import Price
from gateway.formats import FORMATS
from gateway.quota import pricing
from gateway.records import Failure, Fault, Phase, Usage
from gateway.relay import batch_results as under_test
from gateway.upstream.connection import Head
from gateway.upstream.download import Download

RESERVED = Usage(1000, 400)


class Pieces:
    """A download of these pieces."""

    def __init__(self, *pieces: bytes, failure: Failure | None = None) -> None:
        self._pieces = list(pieces)
        self.failure = failure

    async def read(self) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


def line(prompt: int, completion: int, status: int = 200, **usage: Any) -> bytes:
    told = {"prompt_tokens": prompt, "completion_tokens": completion, **usage}
    body = {"model": "gpt-4o-2026", "choices": [{"message": {"content": "Hi"}}], "usage": told}
    return json.dumps({"custom_id": "a", "response": {"status_code": status, "body": body}}).encode() + b"\n"


def reader(price: Price | None = None, lines: int = 4) -> under_test.ResultReader:
    batch = FORMATS["batches"].batch
    assert batch is not None
    return under_test.ResultReader(batch, "chat", under_test.BatchTotals(price, RESERVED, lines, "batch", 0.0))


async def read(result: under_test.ResultReader, pieces: Sequence[bytes], **more: Any) -> bool:
    head = Head(200, tuple(more.pop("headers", ())))
    return await result.read(cast(Download, Pieces(*pieces, **more)), head)


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_lines_are_added_however_they_come(size: int) -> None:
    text = line(10, 5) + b"\r\n\n" + line(20, 6) + line(99, 99, 500) + line(1, 1).rstrip()
    result = reader()
    assert await read(result, [text[at : at + size] for at in range(0, len(text), size)])
    assert result.totals.usage == Usage(31, 12, source="reported", variant="batch")
    assert result.totals.model == "gpt-4o-2026"


async def test_what_is_encoded_is_decoded() -> None:
    result = reader()
    assert await read(result, [gzip.compress(line(10, 5))], headers=[("content-encoding", "gzip")])
    assert result.totals.usage.prompt_tokens == 10
    assert not await read(reader(), [b"none of it"], headers=[("content-encoding", "gzip")])
    assert not await read(reader(), [b"x"], headers=[("content-encoding", "unknown")])


async def test_a_cut_answer_is_none() -> None:
    cut = Failure("main", Phase.RELAYING, Fault.CUT)
    assert not await read(reader(), [line(10, 5), b'{"custom'], failure=cut)


@pytest.mark.parametrize(
    "strange", [b"no json\n", b"[]\n", b'{"response": {"status_code": 200}}\n', b"[" * 100_000 + b"\n"]
)
async def test_a_line_that_cannot_be_read_is_charged_its_share(strange: bytes) -> None:
    result = reader()
    assert await read(result, [strange, line(10, 5)])
    assert result.totals.usage == Usage(260, 105, source="estimated", variant="batch")


async def test_a_long_line_is_charged_its_share_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "MAX_LINE_BYTES", 1000)
    result = reader()
    assert await read(result, [*[b"x" * 600] * 5, b"\n", line(10, 5)])
    assert result.totals.usage == Usage(260, 105, source="estimated", variant="batch")


async def test_long_prompts_are_priced_one_by_one() -> None:
    tiers = [{"above": 100, "input": 4, "output": 8}]
    price = Price.model_validate({"input": 2, "output": 4, "tiers": tiers})
    result = reader(price)
    assert await read(result, [line(90, 10) * 2 + line(110, 10)])
    usage = result.totals.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (290, 30)
    assert pricing.cost_nusd(price, usage) == 2 * (90 * 2000 + 10 * 4000) + 110 * 4000 + 10 * 8000


def test_results_of_a_message_batch() -> None:
    batch = FORMATS["message_batches"].batch
    assert batch is not None
    usage = {"input_tokens": 7, "output_tokens": 3, "service_tier": "batch"}
    message = {"type": "message", "model": "claude", "content": [], "usage": usage}
    facts = batch.line(
        json.dumps({"custom_id": "a", "result": {"type": "succeeded", "message": message}}).encode(), "messages"
    )
    assert facts is not None
    assert facts.usage is not None
    assert (facts.usage.prompt_tokens, facts.usage.completion_tokens) == (7, 3)
    for kind in ("errored", "canceled", "expired"):
        assert batch.line(json.dumps({"result": {"type": kind}}).encode(), "messages") is None


@pytest.mark.parametrize("name", ["batches", "message_batches"])
@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"status": 5}', b'{"processing_status": "new"}'])
def test_what_is_no_batch_says_nothing(name: str, body: bytes) -> None:
    batch = FORMATS[name].batch  # type: ignore[index]
    with pytest.raises(ValueError):
        batch.state(body)
