"""What is read of a request of Gemini's API."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.formats import ceilings
from gateway.formats.gemini.request import read, read_count

TEXT = {"text": "Hello there"}
IMAGE = {"inlineData": {"mimeType": "image/png", "data": "AA=="}}
KEPT = {"fileData": {"fileUri": "files/x"}}
SEARCH = {"googleSearch": {}}


def asked(members: Any) -> bytes:
    return json.dumps(members).encode()


@pytest.mark.parametrize("part", [TEXT, IMAGE])
@pytest.mark.parametrize("more", [{}, {"tools": SEARCH}, {"safety_settings": {"category": "X"}}])
def test_one_object_is_a_list_of_one(part: Any, more: Any) -> None:
    one = read(asked({"contents": {"parts": part}} | more))
    several = read(asked({"contents": [{"parts": [part]}]} | {name: [value] for name, value in more.items()}))
    brackets = 2 if "tools" in more else 0
    assert one.prompt_tokens <= several.prompt_tokens <= one.prompt_tokens + brackets
    assert ceilings.added_tokens(one) == ceilings.added_tokens(several)
    assert json.loads(one.document.text) == {"contents": {"parts": part}} | more


def test_one_object_is_a_list_of_one_where_tokens_are_counted() -> None:
    assert read_count(asked({"contents": {"parts": TEXT}})).document.members == {"contents": {"parts": TEXT}}


@pytest.mark.parametrize(
    ("contents", "param"),
    [
        ({"parts": KEPT}, "fileData"),
        ("Hello", "contents"),
        ([], "contents"),
        ([{"parts": "Hello"}], "contents[0].parts"),
        ({"role": 5}, "contents[0].role"),
    ],
)
def test_other_contents_are_refused(contents: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(asked({"contents": contents}))
    assert caught.value.param == param
