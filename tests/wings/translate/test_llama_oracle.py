"""llama.cpp's own Responses and Messages beside our translations of its chat: the same, but for what tables explain.

The cases are recorded (`llama_record.py`): one generation, as chat, and as llama.cpp itself shows it in the client's
format. That the prompts have as many tokens in both says that the translated request asks for the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from . import differences, llama_record
from .llama_differences import DIFFERS, STREAMS_DIFFER
from .translated import sent, shown

RECORDED: dict[str, dict[str, Any]] = {
    f"{path.parent.name}/{path.stem}": json.loads(path.read_text())
    for path in sorted(llama_record.FOLDER.glob("*/*.json"))
}
PLAIN = [name for name, case in RECORDED.items() if "answer" in case]
STREAMS = [name for name, case in RECORDED.items() if "chunks" in case]


def way_of(name: str) -> str:
    return name.partition("/")[0]


def plain_places(name: str) -> Iterator[str]:
    case = RECORDED[name]
    return (f"{way_of(name)} shown {path}" for path in differences.places(shown(way_of(name), case), case["theirs"]))


def stream_places(name: str) -> Iterator[str]:
    case = RECORDED[name]
    return differences.stream_places(way_of(name), shown(way_of(name), case), case["theirs"])


def test_every_case_is_recorded() -> None:
    assert {name: case["request"] for name, case in RECORDED.items()} == llama_record.cases()


@pytest.mark.parametrize("name", RECORDED)
def test_the_request_is_still_translated_so(name: str) -> None:
    assert sent(way_of(name), RECORDED[name]) == RECORDED[name]["sent"]


@pytest.mark.parametrize("name", PLAIN)
def test_every_difference_is_explained(name: str) -> None:
    assert not differences.unexplained(DIFFERS, plain_places(name))


@pytest.mark.parametrize("name", STREAMS)
def test_every_difference_of_a_stream_is_explained(name: str) -> None:
    assert not differences.unexplained(STREAMS_DIFFER, stream_places(name))


def test_every_row_is_of_a_difference() -> None:
    assert not differences.unused(DIFFERS, [place for name in PLAIN for place in plain_places(name)])
    assert not differences.unused(STREAMS_DIFFER, [place for name in STREAMS for place in stream_places(name)])
