"""Every recorded stream of Gemini's API, cut in two, through a whole gateway, as events and as an array.

What is expected is written by hand: the chunks before an error or the end, then an error where the upstream sent one or
ended early.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import Wire
from tests.flows.cutting import ask_all, telling_cuts, write_cut
from tests.flows.gateway_process import Gateway
from tests.flows.test_gemini import CONTENTS, GEMINI, RECORDED, chunks, gemini_settings

BROKEN = frozenset({"error-in-stream", "ended-early"})
CHUNKS = {name: [each for each in chunks(text.replace(b"data: [DONE]", b"")) if "error" not in each]
          for name, text in RECORDED.items()}  # fmt: skip

Case = tuple[str, str, int]
"""The stream's name, `sse` or `json`, and where it is cut."""


def cases() -> list[Case]:
    return [
        (name, form, cut) for name, text in RECORDED.items() for form in ("sse", "json") for cut in telling_cuts(text)
    ]


async def cutter(wire: Wire) -> None:
    """The recorded stream that the request names, in two chunks."""
    name, _, cut = wire.request.json["labels"]["case"].split(":")
    await write_cut(wire, RECORDED[name], int(cut))


def members_of(case: Case) -> dict[str, Any]:
    return {"contents": CONTENTS, "labels": {"case": ":".join(map(str, case))}}


def path_of(case: Case) -> str:
    return f"/v1beta/models/{GEMINI}:streamGenerateContent?alt={case[1]}"


def read(passed: bytes, form: str) -> list[Any]:
    """The chunks of an answer; events may have nothing but lines of data."""
    if form == "json":
        items: list[Any] = json.loads(passed)
        return items
    lines = passed.decode().splitlines()
    assert all(line.startswith("data: {") for line in lines if line)
    return chunks(passed)


def check(case: Case, passed: bytes) -> None:
    name, form, _ = case
    received = read(passed, form)
    if name in BROKEN:
        assert list(received.pop()) == ["error"]
    assert received == CHUNKS[name]


@pytest.fixture
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    config = gemini_settings(shared_upstream.url)
    config["server"]["access_log"] = "off"
    return start_shared_gateway(config)


async def test_cuts_of_every_recorded_stream(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=cutter)
    await ask_all(gateway.port, path_of, cases(), members_of, check)
    assert len(cases()) == upstream.hits > 1000
