"""Ceilings of usage reports: no true report exceeds one, and a senseless one stays small."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config import Model, Route
from gateway.formats.ceilings import OUTPUT_ALLOWANCE, PROMPT_ALLOWANCE
from gateway.records import Call, Document, Endpoint, Key, Params, Usage
from gateway.relay.charge import REASONING_ALLOWANCE, SentRequest
from tests.fakes.params import SET_BY_FORMAT

LIMIT = 100
BYTES = 1000


def sent(endpoint: Endpoint = "chat", limit: int | None = LIMIT, model: str = "m", **more: Any) -> SentRequest:
    params = Params(
        Document("", more.pop("members", {})), model, output_limit=limit, **(SET_BY_FORMAT[endpoint] | more)
    )
    call = Call(
        "r", 0.0, Key("k"), endpoint, params, Model(routes=(Route(upstream="u"),)), label_model="m", arrived=0.0
    )
    return SentRequest(call, None, limit, pieces=[bytes(BYTES)])


def message(*kinds: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": kind} for kind in kinds]}]}


@pytest.mark.parametrize(
    ("asked", "report"),
    [
        (sent(), Usage(BYTES, LIMIT)),  # a token for each byte
        (sent(), Usage(BYTES + 25_000, LIMIT + 1)),  # a template of the upstream
        (sent("completions", n=4, best_of=8), Usage(10, 8 * LIMIT)),
        (sent("completions", prompts=2048), Usage(10, 2048 * LIMIT)),
        (sent(model="o3"), Usage(10, LIMIT + 100_000)),  # the limit is only for the text behind the reasoning
        (sent(model="o3", n=2), Usage(10, 2 * (LIMIT + 100_000))),
        (sent(members={"reasoning_effort": "high"}), Usage(10, LIMIT + 100_000)),
        (sent(), Usage(10, LIMIT + 32_000, 0, 32_000)),
        (sent(limit=None), Usage(10, 100_000)),
        (sent(members=message("text", "image_url", "image_url")), Usage(90_000, 1)),
        (sent(members=message("input_audio")), Usage(110_000, 1)),
        (sent(members=message("file")), Usage(900_000, 1)),
        (sent(members={"web_search_options": {}}), Usage(900_000, 1)),
        (sent(members={"tools": [{"type": "web_search"}]}), Usage(900_000, 1)),
        (sent("embeddings", limit=None), Usage(BYTES, 0)),
    ],
)
def test_a_true_report_is_below_the_ceiling(asked: SentRequest, report: Usage) -> None:
    assert asked.allows(report)
    assert asked.bounded(report) == report


def test_an_upstream_that_ignores_the_limit_is_believed_by_what_it_shows() -> None:
    assert not sent().allows(Usage(10, 20_000), lambda: 100)
    assert sent().allows(Usage(10, 20_000), lambda: 15_000)


@pytest.mark.parametrize(
    ("asked", "most"),
    [
        (sent(), (BYTES + PROMPT_ALLOWANCE, 2 * LIMIT + OUTPUT_ALLOWANCE)),
        (sent("completions", limit=None), (BYTES + PROMPT_ALLOWANCE, 2 * 16 + OUTPUT_ALLOWANCE)),
        (sent(model="o3"), (BYTES + PROMPT_ALLOWANCE, 2 * LIMIT + REASONING_ALLOWANCE + OUTPUT_ALLOWANCE)),
        (sent("embeddings", limit=None), (BYTES + PROMPT_ALLOWANCE, OUTPUT_ALLOWANCE)),
    ],
)
def test_a_senseless_report_is_bounded(asked: SentRequest, most: tuple[int, int]) -> None:
    assert asked.bounded(Usage(2**52, 2**52, source="reported")) == Usage(*most, source="estimated")
