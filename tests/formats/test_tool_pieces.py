"""The arguments of a tool call come out whole, whether its pieces are what is new, all so far, or all once more."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.formats import events
from gateway.formats.events import CollectedCall

NAMES = st.text(st.sampled_from('{}":1, a\\'), max_size=5)
VALUES = st.recursive(
    st.just(1) | NAMES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2)
)
ARGUMENTS = st.dictionaries(NAMES, VALUES, max_size=2)


def received(pieces: Sequence[str]) -> tuple[str, list[str]]:
    """The arguments of a call of these pieces, and what of them was handed out before the end."""
    call = CollectedCall(0)
    handed = [call.take("call_a", "look", "") or ""]
    handed += [call.take("", "", piece) or "" for piece in pieces]
    assert "".join([*handed, call.rest()]) == call.arguments
    return call.arguments, handed


@pytest.mark.parametrize("sender", ["new", "so far", "once more", "once more, with other blanks"])
@given(arguments=ARGUMENTS, data=st.data())
def test_arguments_are_those_that_the_model_gave(sender: str, arguments: object, data: st.DataObject) -> None:
    text = json.dumps(arguments)
    cuts = sorted(data.draw(st.lists(st.integers(1, len(text)), max_size=4)))
    starts = [0, *cuts]
    ends = [*cuts, len(text)]
    match sender:
        case "new":
            pieces = [text[start:end] for start, end in zip(starts, ends, strict=True)]
        case "so far":
            pieces = [text[:end] for end in ends]
        case _:
            whole = text if sender == "once more" else json.dumps(arguments, separators=(",", ":"))
            pieces = [*[text[start:end] for start, end in zip(starts, cuts, strict=False)], whole]
    assert json.loads(received(pieces)[0]) == arguments


NESTED = '{"x":['


@pytest.mark.parametrize(
    ("pieces", "whole"),
    [
        (
            [NESTED + "1," * number for number in range(60)] + [NESTED + "1," * 60 + "1]}"],
            NESTED + "1," * 60 + "1]}",
        ),
        ([NESTED] * 60 + ["1" + "]}" * 60], NESTED * 60 + "1" + "]}" * 60),
        ([NESTED] * 60 + [NESTED + "1]}"], NESTED + "1]}"),
    ],
)
def test_many_pieces_that_may_be_all_so_far(pieces: Sequence[str], whole: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is read in a few ways, and not in as many as there are pieces."""
    looks, reads = 0, events._may_become_json

    def counted(text: str) -> bool:
        nonlocal looks
        looks += 1
        return reads(text)

    monkeypatch.setattr(events, "_may_become_json", counted)
    assert received(pieces)[0] == whole
    assert looks <= 4 * len(pieces)


@pytest.mark.parametrize(
    ("pieces", "whole"),
    [
        (['{"', '{": 1}'], '{"{": 1}'),
        (['{"a":', '{"a":1}', "}"], '{"a":{"a":1}}'),
        (['{"a":', '{"a":1}'], '{"a":1}'),
        (['{"a":', '{"a":', "1}"], '{"a":1}'),
        (['{"a":', '{"a":', "1}}"], '{"a":{"a":1}}'),
        (['{"{', '{"{\\', '{"{\\": tr', '{"{\\": true}'], '{"{\\": true}'),
        (["{}", '{"a":1}'], '{"a":1}'),
        (["{}", "{}"], "{}"),
        (['{"a":"}{"}' * 3], '{"a":"}{"}'),
        (['{"a":1}{"b":1}'], '{"a":1}{"b":1}'),
        (['{"a":', '{"a":' + "9" * 5000], '{"a":' + "9" * 5000),
        ([" ", " "], ""),
        (['{"a": [], "11 ', '{"a":[],"11  ":1}'], '{"a": [], "11  ":1}'),
        (['{"b": 1, "\\" : ', '{"b":1,"\\" :  ":1}'], '{"b": 1, "\\" :  ":1}'),
    ],
)
def test_a_piece_that_may_be_a_part_or_all_is_what_makes_json(pieces: list[str], whole: str) -> None:
    assert received(pieces)[0] == whole


def test_pieces_that_can_only_be_read_in_one_way_are_handed_out_at_once() -> None:
    assert received(['{"at":"he', 're","in":{', '"x":1}}'])[1][1:] == ['{"at":"he', 're","in":{', '"x":1}}']
    assert received(['{"at"', '{"at":"he', '{"at":"here"}'])[1][1:] == ['{"at"', ':"he', 're"}']
