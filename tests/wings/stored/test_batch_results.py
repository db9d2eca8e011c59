"""What a batch has used, by its results (gateway/wings/stored/batch_results.py)."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Sequence
from typing import Any, cast

import pytest

from gateway.config import Model, Price, Route
from gateway.formats.format import LONG_ANSWER
from gateway.formats.table import FORMATS
from gateway.quota import pricing
from gateway.records import Call, Document, Failure, Fault, Key, LineCeilings, Params, Phase, Usage
from gateway.relay.charge import SentRequest
from gateway.upstream.connection import Head
from gateway.upstream.download import Download
from gateway.wings.stored import batch_results as under_test
from tests.fakes.turns import counted

RESERVED = Usage(1000, 400)


class Pieces:
    """A download of these pieces."""

    def __init__(self, *pieces: bytes, failure: Failure | None = None) -> None:
        self._pieces = list(pieces)
        self.failure = failure

    async def read(self) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


_names = itertools.count()


def line(prompt: int, completion: int, status: int = 200, text: str = "Hi", name: str = "", **usage: Any) -> bytes:
    received = {"prompt_tokens": prompt, "completion_tokens": completion, **usage}
    body = {"model": "gpt-4o-2026", "choices": [{"message": {"content": text}}], "usage": received}
    received = {"custom_id": name or f"line-{next(_names)}", "response": {"status_code": status, "body": body}}
    return json.dumps(received).encode() + b"\n"


CEILINGS = LineCeilings(40_000, 5_000, 4 * 35_000, 4 * 4_500)
"""Of four requests, one of which is larger than the others."""


def sent(price: Price | None = None) -> SentRequest:
    model = Model(routes=(Route(upstream="main"),), price=price)
    params = Params(Document("{}", {}), "gpt-4o", variant="batch")
    return SentRequest(Call("req_1", 0.0, Key("alice"), "chat", params, model, label_model="gpt-4o", arrived=0.0))


def reader(price: Price | None = None, ceilings: LineCeilings = CEILINGS) -> under_test.ResultReader:
    batch = FORMATS["batches"].batch
    assert batch is not None
    size = under_test.BatchSize(4, RESERVED, ceilings)
    return under_test.ResultReader(batch, under_test.BatchTotals(sent(price), size))


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


def vectors(name: str, number: int, **more: Any) -> bytes:
    """A line with vectors of 256 numbers."""
    data = [{"object": "embedding", "embedding": [0.0123456] * 256}] * number
    body = {"model": "v", "data": data, "usage": {"prompt_tokens": 70, "total_tokens": 70}}
    received = {"custom_id": name, "response": {"status_code": 200, "body": body} | more}
    return json.dumps(received).encode() + b"\n"


@pytest.mark.parametrize("size", [1000, 65_536, 10**9])
async def test_a_long_line_is_read_as_a_short_one(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces, and never all of it at once."""
    result = reader()
    result.totals.endpoint = "embeddings"
    data = vectors("a", 2) + vectors("b", 300) + vectors("b", 300) + vectors("c", 300, status_code=500) + b'{"a": [' * 9
    with counted(monkeypatch) as turns:
        assert await read(result, [data[at : at + size] for at in range(0, len(data), size)])
    assert turns.longest_json <= LONG_ANSWER
    usage = result.totals.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.source) == (70 + 70 + 250, 100, "estimated")
    assert result.totals.model == "v"


async def test_what_a_long_line_shows_raises_its_ceiling() -> None:
    result = reader()
    assert await read(result, [line(10, 60_000, text="Hi " * 60_000)])
    assert result.totals.usage[:2] == (10, 60_000)


async def test_long_prompts_are_priced_one_by_one() -> None:
    tiers = [{"above": 100, "input": 4, "output": 8}]
    price = Price.model_validate({"input": 2, "output": 4, "tiers": tiers})
    result = reader(price)
    assert await read(result, [line(90, 10) + line(90, 10) + line(110, 10)])
    usage = result.totals.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (290, 30)
    assert pricing.cost_nusd(price, usage) == 2 * (90 * 2000 + 10 * 4000) + 110 * 4000 + 10 * 8000


@pytest.mark.parametrize(("regional", "expected"), [({"input": 2.2}, 10 * 2000 + 20 * 2200), ({}, 30 * 2000)])
async def test_the_region_of_a_request_has_its_price_if_there_is_one(regional: dict[str, float], expected: int) -> None:
    named = {"batch": {"input": 2}, **({"batch-us": regional} if regional else {})}
    price = Price.model_validate({"input": 4, "output": 4, "variants": named})
    batch = FORMATS["message_batches"].batch
    assert batch is not None
    asked = sent(price)
    asked = asked._replace(call=asked.call._replace(endpoint="messages"))
    result = under_test.ResultReader(batch, under_test.BatchTotals(asked, under_test.BatchSize(4, RESERVED, CEILINGS)))

    def message(name: str, prompt: int, **region: str) -> bytes:
        usage = {"input_tokens": prompt, "output_tokens": 0, "service_tier": "batch", **region}
        shown = {"type": "message", "model": "claude", "content": [], "usage": usage}
        return json.dumps({"custom_id": name, "result": {"type": "succeeded", "message": shown}}).encode() + b"\n"

    assert await read(result, [message("a", 10), message("b", 20, inference_geo="us")])
    assert pricing.cost_nusd(price, result.totals.usage) == expected


SENSELESS = 9 * 10**15
THOUGHT = {"reasoning_tokens": 5_900}


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([(SENSELESS, 5)], (40_000, 5, "estimated")),
        ([(10, SENSELESS)], (10, 5_000 + 4, "estimated")),
        ([(10**18, 10**18)], (250, 100, "estimated")),  # no count: its share of the reservation
        ([(40_000, 5_000)], (40_000, 5_000, "reported")),
        ([(40_000, 1)] * 4, (4 * 35_000, 4, "estimated")),  # together more than all requests can have
        ([(1, 5_000)] * 4, (4, 4 * 4_500 + 4, "estimated")),
        ([(1, 1)] * 5, (4, 4, "reported")),  # more answers than requests
    ],
)
async def test_a_report_is_bounded_by_the_requests(
    lines: list[tuple[int, int]], expected: tuple[int, int, str]
) -> None:
    result = reader()
    assert await read(result, [line(prompt, output) for prompt, output in lines])
    usage = result.totals.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.source) == expected


async def test_an_upstream_that_ignores_the_limit_is_believed_by_what_it_shows() -> None:
    result = reader()
    assert await read(
        result, [line(10, 8_000, text="word " * 8_000), line(10, 6_000, completion_tokens_details=THOUGHT)]
    )
    usage = result.totals.usage
    assert (usage.completion_tokens, usage.source) == (14_000, "reported")


async def test_details_are_parts_of_what_is_charged() -> None:
    result = reader()
    assert await read(result, [line(SENSELESS, 5, prompt_tokens_details={"cached_tokens": SENSELESS})])
    assert (result.totals.usage.prompt_tokens, result.totals.usage.cached_tokens) == (40_000, 40_000)


async def test_without_ceilings_a_report_is_bounded_all_the_same() -> None:
    """Of a batch that a gateway began which did not keep them."""
    result = reader(ceilings=LineCeilings())
    assert await read(result, [line(SENSELESS, SENSELESS)])
    most = under_test.ANY_REQUEST
    assert result.totals.usage[:2] == (most, most + 4)


async def test_a_request_is_charged_for_its_first_answer() -> None:
    result = reader()
    failed = line(1, 1, 500, name="a")
    assert await read(result, [failed, line(10, 5, name="a"), line(20, 6, name="a"), line(1, 1, name="b")])
    assert result.totals.usage[:2] == (11, 6)


def test_results_of_a_message_batch() -> None:
    batch = FORMATS["message_batches"].batch
    assert batch is not None
    usage = {"input_tokens": 7, "output_tokens": 3, "service_tier": "batch"}
    message = {"type": "message", "model": "claude", "content": [], "usage": usage}
    found = batch.line(
        json.dumps({"custom_id": "a", "result": {"type": "succeeded", "message": message}}).encode(), "messages"
    )
    assert found.custom_id == "a"
    assert found.facts is not None
    assert found.facts.usage is not None
    assert (found.facts.usage.prompt_tokens, found.facts.usage.completion_tokens) == (7, 3)
    for kind in ("errored", "canceled", "expired"):
        assert batch.line(json.dumps({"result": {"type": kind}}).encode(), "messages").facts is None


@pytest.mark.parametrize("name", ["batches", "message_batches"])
@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"status": 5}', b'{"processing_status": "new"}'])
def test_what_is_no_batch_says_nothing(name: str, body: bytes) -> None:
    batch = FORMATS[name].batch  # type: ignore[index]
    with pytest.raises(ValueError):
        batch.state(body)
