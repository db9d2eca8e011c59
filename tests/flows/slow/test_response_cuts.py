"""Streams of the Responses API, cut in two at every byte, through a whole gateway."""

from __future__ import annotations

import pytest

from tests.conftest import Stage, StartsGateways
from tests.fakes import responses_api as api
from tests.fakes.scripted import Wire
from tests.flows.cutting import ask_all, write_cut
from tests.flows.house import Gateway, model, settings
from tests.flows.test_responses import GOOD, MODEL, OUTPUT, data_of

RECORDED = {
    "completed": GOOD,
    "incomplete": api.written(
        api.events(OUTPUT, api.response(OUTPUT, status="incomplete"), "response.incomplete", api.response())
    ),
    "failed": api.written(
        api.events(
            OUTPUT,
            api.response(status="failed", error={"code": "server_error", "message": "x"}),
            "response.failed",
            api.response(),
        )
    ),
}
Case = tuple[str, int]
"""The stream's name, and where it is cut."""


async def cutter(wire: Wire) -> None:
    """The stream that the request names, in two chunks."""
    name, cut = wire.request.json["user"].split(":")
    await write_cut(wire, RECORDED[name], int(cut))


def check_cut(case: Case, passed: bytes) -> None:
    text = RECORDED[case[0]]
    if case[0] != "failed":
        assert passed == text
        return
    same = text.index(b"event: response.failed")
    assert passed[:same] == text[:same]
    assert data_of(passed[same:])["response"]["error"]["code"] == "upstream_error"


@pytest.fixture
def house(gateways: StartsGateways, theatre: Stage) -> Gateway:
    return gateways(settings(theatre.url, models={MODEL: model("responses")}, server={"access_log": "off"}))


async def test_every_cut_of_every_stream(house: Gateway, upstream: Stage) -> None:
    upstream.play(always=cutter)
    cases = [(name, cut) for name, text in RECORDED.items() for cut in range(len(text))]
    await ask_all(
        house.port, "/v1/responses", cases,
        lambda case: {"model": MODEL, "stream": True, "input": "Hi", "user": f"{case[0]}:{case[1]}"}, check_cut,
    )  # fmt: skip
    assert upstream.hits == len(cases)
