"""Every recorded stream, cut in two, through a whole gateway: the client gets the upstream's bytes.

The expected bytes are from the slow scanner of tests/formats; those of a stream's end are literals. The upstream cuts
at the position in the request, so that many calls are open at once; each half is one chunk.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import Wire
from tests.flows.cutting import ask_all, telling_cuts, write_cut
from tests.flows.gateway_process import CHAT, COMPLETIONS, Gateway, settings
from tests.formats.slow_scan import Rewritten, Slow, assert_passed

RECORDED = {path.stem: path.read_bytes() for path in sorted((Path(__file__).parents[2] / "recorded").glob("*.sse"))}
DONE = b"data: [DONE]\n\n"
ENDS = {"LF": b"\n", "CRLF": b"\r\n", "CR": b"\r"}

Case = tuple[str, str, int, bool]
"""The stream's name, its line ends, where it is cut, and whether the client asked for its usage."""


def text_of(name: str, end: str) -> bytes:
    return RECORDED[name].replace(b"\n", ENDS[end])


def choices_of(name: str) -> int:
    return 2 if "two" in name else 1


async def cutter(wire: Wire) -> None:
    """The recorded stream that the request names, in two chunks."""
    name, end, cut = wire.request.json["user"].split(":")
    await write_cut(wire, text_of(name, end), int(cut))


def cases() -> list[Case]:
    """With LF for clients that get the usage and for those that do not, by turns with other line ends."""
    found: list[Case] = []
    for name, end in itertools.product(RECORDED, ENDS):
        for number, cut in enumerate(telling_cuts(text_of(name, end))):
            found += [(name, end, cut, shows) for shows in (True, False) if end == "LF" or shows == (number % 2 == 0)]
    return found


def is_chat(case: Case) -> bool:
    return b"chat.completion" in RECORDED[case[0]]


def members_of(case: Case) -> dict[str, Any]:
    name, end, cut, shows = case
    asked = {"messages": [{"role": "user", "content": "Hi"}]} if is_chat(case) else {"prompt": "Hi"}
    usage = {"stream_options": {"include_usage": True}} if shows else {}
    model = CHAT if is_chat(case) else COMPLETIONS
    return {"model": model, "stream": True, "n": choices_of(name), "user": f"{name}:{end}:{cut}", **asked, **usage}


def expectations() -> dict[tuple[str, str, bool], tuple[list[bytes | Rewritten], bytes | None]]:
    """What passes of each stream, and how it ends: None for an error event."""
    found = {}
    for name in RECORDED:
        for end in ENDS:
            for shows in (True, False):
                slow = Slow(choices_of(name), shows, 65536)
                slow.read(text_of(name, end))
                is_whole = slow.error is None and len(slow.finished) == choices_of(name)
                found[name, end, shows] = slow.out, (DONE if slow.is_done else b"") if is_whole else None
    return found


def check(passed: bytes, out: list[bytes | Rewritten], last: bytes | None) -> None:
    if last is None:
        passed, mark, error = passed.rpartition(b"data: ")
        assert mark
        assert sorted(json.loads(error)["error"]) == ["code", "message", "param", "type"]
        assert error.endswith(b"\n\n")
    else:
        assert passed.endswith(last)
        passed = passed.removesuffix(last)
    assert_passed(passed, out)


@pytest.fixture
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    return start_shared_gateway(settings(shared_upstream.url, server={"access_log": "off"}))


async def test_cuts_of_every_recorded_stream(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(always=cutter)
    expected = expectations()

    def check_case(case: Case, passed: bytes) -> None:
        name, end, _, shows = case
        check(passed, *expected[name, end, shows])

    for path, of_chat in (("/v1/chat/completions", True), ("/v1/completions", False)):
        todo = [case for case in cases() if is_chat(case) is of_chat]
        await ask_all(gateway.port, path, todo, members_of, check_case)
    assert len(cases()) == upstream.hits > 1000
