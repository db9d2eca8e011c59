"""No text and no file makes a function in C work for long: that is in no count of calls, and holds the event loop also
from a thread."""

from __future__ import annotations

import ast
import json
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gateway
from gateway.api import large_body
from gateway.api.file_ids import named_files
from gateway.config import Model, ModelTable, build
from gateway.errors import GatewayError
from gateway.formats.table import FORMATS
from gateway.wings.parameters import policy
from gateway.wings.realtime import formats as realtime
from gateway.wings.stored import conversations
from gateway.wings.tasks.formats import refuse_in_query, refuse_misread
from gateway.wings.tasks.settings import rows_of
from tests.flows.task_rows import rows
from tests.invariants.slow.test_large_bodies import DOORS

PACKAGE = Path(gateway.__file__).parent
NORMALISE = {
    "spelling": "piece by piece, which this file tests",
    "config/sections/keys": "names of people, which have at most 256 characters",
}
"""The modules that may call `unicodedata`, and why."""

SHORT, LONG = 64, 12_000
"""Characters that may be normalised at once, and those of the text that is sent."""

MARKS = "a" + "\u0300\u0327" * (LONG // 2)
"""Each mark has to be put in order among all before it."""


def nested(value: Any, name: str) -> Any:
    """The value with this name in each of its objects."""
    if isinstance(value, dict):
        return {**{key: nested(each, name) for key, each in value.items()}, name: name}
    return [nested(each, name) for each in value] if isinstance(value, list) else value


@pytest.fixture
def normalised(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the texts that are normalised."""
    found: list[int] = []
    normalize = unicodedata.normalize

    def noted(form: Any, text: str) -> str:
        found.append(0 if text.isascii() else len(text))
        return normalize(form, text[:SHORT])

    monkeypatch.setattr(unicodedata, "normalize", noted)
    return found


def test_one_module_normalises_what_clients_send() -> None:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "normalize" in text else ():
            if (
                isinstance(node, ast.Attribute | ast.Name)
                and getattr(node, "attr", getattr(node, "id", "")) == "normalize"
            ):
                found.add(str(path.relative_to(PACKAGE).with_suffix("")))
    assert found == NORMALISE.keys()


@pytest.mark.parametrize("door", DOORS)
def test_names_in_bodies(door: str, normalised: list[int]) -> None:
    """At the top, in each object, and alone, because the first fault ends a check."""
    whole = dict(DOORS[door].body)
    for body in (
        {**whole, MARKS: 1},
        nested(whole, MARKS),
        *[{**whole, name: nested(each, MARKS)} for name, each in whole.items()],
    ):
        try:
            params = FORMATS[door].read(json.dumps(body).encode(), lambda model: None)  # type: ignore[index]
            named_files(params.document)
            large_body.brief(params, [], set(), None)
        except GatewayError:
            pass
    assert normalised
    assert max(normalised) <= SHORT


def _others() -> Iterator[tuple[str, Any]]:
    config = build({"upstreams": {"main": {"base_url": "https://a.example"}}, "passthrough": rows()})
    for name, each in rows_of(config).items():
        yield f"row {name}", lambda each=each: refuse_misread(each, {MARKS: 1})
        yield f"query of {name}", lambda each=each: refuse_in_query(each, None, [MARKS])
    items = json.dumps({"items": [nested({"type": "message", "role": "user", "content": "Hi"}, MARKS)]}).encode()
    yield "conversation", lambda: conversations._checked(items)
    table = ModelTable({"a*": Model.model_validate({"routes": [{"upstream": "main"}]})})
    yield "model", lambda: table.find(MARKS)
    yield "parameters", lambda: policy.as_spelled({"seed": policy.MemberStep("set", 1)}, {MARKS: 1}, in_two=True)
    yield "realtime", lambda: [*realtime.settings_of({"type": "session.update", "session": {MARKS: 1}})]


OTHERS = dict(_others())


@pytest.mark.parametrize("door", OTHERS)
def test_names_elsewhere(door: str, normalised: list[int]) -> None:
    try:
        OTHERS[door]()
    except GatewayError:
        pass
    assert max(normalised, default=0) <= SHORT


def test_no_parser_reads_cookies() -> None:
    """That of aiohttp takes 36 ms for 7,500 characters, and asks no one for a key."""
    assert [path for path in PACKAGE.rglob("*.py") if ".cookies" in path.read_text()] == []


def test_spellings_with_marks_are_still_known() -> None:
    from gateway.spelling import compatible, folded, plain_address

    assert folded("\uff4d\u0300\u0327ode\u0301l" + "\u0300" * 500) == "model"
    assert compatible("\ufdfa" * 100_000, 500).isprintable()
    assert len(compatible("\ufdfa" * 100_000, 500)) < 1_200
    assert plain_address("\uff48ttps://a.example/\uff46iles") == "https://a.example/files"
