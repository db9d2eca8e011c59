"""A large body in pieces says and becomes the same as one that is touched whole."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api import json_document, large_body
from gateway.errors import InvalidRequest
from gateway.formats import table

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
BODIES = st.dictionaries(st.sampled_from(["user", "é", "x", "𝄞", "seed2"]), VALUES, max_size=4)


def cut(raw: bytes, places: list[int]) -> list[bytearray]:
    edges = sorted({0, len(raw), *(place % (len(raw) + 1) for place in places)})
    return [bytearray(raw[start:end]) for start, end in pairwise(edges)]


@given(BODIES, st.lists(st.integers(0, 10**6), max_size=6), st.booleans(), st.sampled_from(["", " ", "\n\t "]))
def test_pieces_become_what_the_whole_becomes(
    more: dict[str, Any], places: list[int], is_ascii: bool, space: str
) -> None:
    members = {"model": "m", "prompt": "long é" * 3000, **more}
    text = space + json.dumps(members, ensure_ascii=is_ascii, indent=1 if space else None) + space
    raw = text.encode("utf-8", "surrogatepass")
    try:
        whole = table.read("completions", raw)
    except InvalidRequest:
        return
    known = json.loads(large_body.brief(whole))
    read = large_body.from_brief(known, cut(raw, places))
    assert read._replace(document=whole.document) == whole
    kept = {name: value for name, value in read.document.members.items() if name != "prompt"}
    assert kept == {name: value for name, value in whole.document.members.items() if name != "prompt"}
    assert read.document.members["prompt"] == ""
    assert read.document.large is not None
    for values in ({}, {"new": 1}, {"model": "other"}, {"prompt": [1], "model": "é", "stream_options": {"a": None}}):
        pieces = large_body.replace(read.document.large, values)
        assert b"".join(pieces) == json_document.replace(whole.document, values)


@pytest.mark.parametrize(
    ("value", "stand_in"),
    [
        ("x" * 9000, ""),
        ({"a": "x" * 9000}, {}),
        (["x"] * 3000, [""] * 1000),
        ([7] * 9000, [7] * 1000),
        ([[[1]] * 9000], [[]]),
        ([{"a": 1}] * 2000, [{}] * 1000),
        (["x"] * 3, ["x"] * 3),
        (int("9" * 4300), int("9" * 4300)),
    ],
)
def test_long_values_have_stand_ins_of_their_kind(value: Any, stand_in: Any) -> None:
    raw = json.dumps({"model": "m", "prompt": "p", "x": value}).encode()
    known = json.loads(large_body.brief(table.read("completions", raw)))
    assert large_body.from_brief(known, [raw]).document.members["x"] == stand_in


@pytest.mark.parametrize("more", [{f"{n:030}": n for n in range(8_000)}, {"n" * 300_000: 1}], ids=["many", "long"])
def test_endless_names_are_refused(more: dict[str, int]) -> None:
    read = table.read("completions", json.dumps({"model": "m", "prompt": "p", **more}).encode())
    with pytest.raises(InvalidRequest, match="too many parameters"):
        large_body.brief(read)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 1000])
def test_a_byte_order_mark_is_left_out(size: int) -> None:
    plain = json.dumps({"model": "m", "prompt": "p" * 5000, "n": 1}).encode()
    raw = BOM_UTF8 + plain
    known = json.loads(large_body.brief(table.read("completions", raw)))
    large = large_body.from_brief(known, [raw[at : at + size] for at in range(0, len(raw), size)]).document.large
    assert large is not None
    assert b"".join(large.pieces) == plain
    assert json.loads(b"".join(large_body.replace(large, {"model": "there"})))["model"] == "there"
