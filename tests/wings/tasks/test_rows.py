"""Passthrough rows: their notation, what it matches, and every fault with its path."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gateway.config import Config, ConfigError, build
from gateway.wings.tasks.formats import replace_links
from gateway.wings.tasks.notation import (
    KeyPlace,
    at_pointer,
    count_at,
    format_value,
    holds,
    read_key_place,
    read_number,
    read_operation,
    read_options,
    texts_at,
)
from gateway.wings.tasks.settings import rows_of
from tests.flows.task_rows import ROWS
from tests.test_floors import complaints_of, impure

GOOD: dict[str, Any] = {
    "upstream": "up", "prefix": "/p", "submit": ["POST /v1/{kind}"], "read": ["GET /v1/{kind}/{task}"], "task": "/id",
    "done": {"/state": "done"},
}  # fmt: skip


def built(**rows: Any) -> Config:
    models = {"m": {"endpoints": ["embeddings"], "routes": [{"upstream": "up"}]}}
    return build({"upstreams": {"up": {"base_url": "http://127.0.0.1:1"}}, "models": models, "passthrough": rows})


def faults(**changes: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as raised:
        built(row=GOOD | changes)
    return {fault.path.removeprefix("passthrough.row."): fault.message for fault in raised.value.faults}


def test_the_ready_rows_are_good() -> None:
    rows = yaml.safe_load(ROWS.read_text())["passthrough"]
    made = rows_of(build({"upstreams": {"tasks": {"base_url": "http://127.0.0.1:1"}}, "passthrough": rows}))
    assert len(made) == len(rows) == 14
    for row in made.values():
        for price in row.prices:
            (rate,) = price.price.plan.variants[""][0].rates.items()
            assert rate[0] == price.unit
            assert rate[1] > 0


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        ({"upstream": "none"}, "upstream", "there is no upstream 'none'; there are: up"),
        ({"submit": []}, "submit", "should have at least 1 item"),
        ({"submit": ["FETCH /a"]}, "submit[0]", "expected a method and a path"),
        ({"submit": ["POST /a b"]}, "submit[0]", "expected a method and a path"),
        ({"submit": ["POST /{a}/{a}"]}, "submit[0]", "expected each name in braces once"),
        ({"submit": ["POST /{a"]}, "submit[0]", "expected a method and a path"),
        ({"prefix": "p/"}, "prefix", "expected to match pattern"),
        ({"prefix": "/v1/models"}, "submit[0]", "the gateway answers"),
        ({"submit": ["POST /v1/{kind}", "POST /v1/{kind}"]}, "submit[1]", "is the same operation as"),
        ({"submit": ["POST /v1/x"]}, "submit[0]", "has no {kind}, which passthrough.row.read[0] needs"),
        ({"read": ["GET /v1/{kind}"]}, "read[0]", "expected {task}"),
        ({"read": ["POST /v1/{kind}/{task}"]}, "read[0]", "so it has to be GET"),
        ({"read": []}, "read", "is required with task"),
        ({"done": {}}, "done", "is required with task"),
        ({"task": None}, "done", "has no effect without task"),
        ({"task": None, "done": {}, "links": ["/url"]}, "links", "has no effect without task"),
        ({"links": ["url"]}, "links[0]", "expected a JSON pointer"),
        ({"lists": ["GET /v1 /x"]}, "lists[0]", "expected a method and a path"),
        ({"lists": ["POST /v1/{kind}"]}, "lists[0]", "is the same operation as"),
        ({"refers": ["id"]}, "refers[0]", "expected a JSON pointer, such as /taskId, or one with the form of its text"),
        ({"refers": ["/content={id} *"]}, "refers[0]", "expected a JSON pointer, such as /taskId"),
        ({"refers": ["/a={task} {task}"]}, "refers[0]", "expected a JSON pointer, such as /taskId"),
        ({"task": "id"}, "task", "expected a JSON pointer"),
        ({"done": {"state": "a"}}, "done.state", "expected a JSON pointer"),
        ({"done": {"/state": []}}, 'done."/state"', "expected a text"),
        ({"model": "name"}, "model", "no path in submit has {name}; names in braces: kind"),
        ({"default_model": "a"}, "default_model", "has no effect without model"),
        ({"headers": ["Cookie"]}, "headers", "cookie is never sent on"),
        ({"prices": [{"when": {"mode": "a"}, "task": 1}]}, "prices[0].when.mode", "no path in submit has {mode}"),
        ({"prices": [{"count": "n", "image": 1}]}, "prices[0].count", "no path in submit has {n}"),
        ({"prices": [{"second": 1}]}, "prices[0]", "count is required"),
        ({"prices": [{"second": 1, "task": 1, "count": "/n"}]}, "prices[0]", "expected one of task, second and image"),
        ({"prices": [{"task": -1}]}, "prices[0].task", "expected a number of US dollars from 0"),
        ({"prices": [{"image": 1, "outputs": "n"}]}, "prices[0].outputs", "no path in submit has {n}"),
        ({"prices": [{"image": 1, "count": ["/n", 5]}]}, "prices[0].count[1]", "expected text"),
        ({"charged": {"state": "a"}}, "charged.state", "expected a JSON pointer"),
        ({"made": ["state"]}, "made[0]", "expected a JSON pointer"),
        ({"task": None, "done": {}, "charged": {"/a": "b"}}, "charged", "has no effect without task"),
        ({"tasks_of": "other"}, "tasks_of", "there is no other row 'other'; there are: none"),
        ({"tasks_of": "row"}, "tasks_of", "there is no other row 'row'; there are: none"),
        ({"key_in": ["x key"]}, "key_in[0]", "expected a header such as x-key, a parameter such as ?key, or a scheme"),
        ({"key_in": ["Authorization: "]}, "key_in[0]", "expected a header such as x-key"),
        ({"key_in": ["Cookie"]}, "key_in[0]", "cookie cannot be one"),
        ({"key_in": ["x-key"], "headers": ["X-Key"]}, "key_in[0]", "x-key has the key, which is never sent on"),
        ({"error": "text"}, "error", "expected"),
        ({"error": {"a": [{"b": "x {mesage}"}]}}, "error.a[0].b", "there is no {mesage}; there are: {status}, {code}"),
        ({"price": 1}, "price", "there is no such setting; did you mean 'prices'?"),
    ],
)  # fmt: skip
def test_every_fault_has_its_path(changes: dict[str, Any], path: str, words: str) -> None:
    found = faults(**changes)
    assert path in found, found
    assert words in found[path]


def test_every_fault_of_a_template_is_reported_at_once() -> None:
    found = faults(error={"code": "{stat}", "message": "{msg} {message}"}, key_in=["x-key"], headers=["x-key"])
    assert set(found) == {"error.code", "error.message", "key_in[0]"}


def test_rows_with_the_tasks_of_one() -> None:
    with pytest.raises(ConfigError) as raised:
        built(a=GOOD, b=GOOD | {"prefix": "/q", "tasks_of": "a"}, c=GOOD | {"prefix": "/r", "tasks_of": "b"})
    (fault,) = raised.value.faults
    assert (fault.path, fault.message) == (
        "passthrough.c.tasks_of", "b has another upstream or tasks of another row itself"
    )  # fmt: skip


def test_faults_between_rows() -> None:
    with pytest.raises(ConfigError) as raised:
        built(chat=GOOD, m=GOOD | {"prefix": "/q"}, other_row=GOOD)
    paths = [fault.path for fault in raised.value.faults]
    assert paths == [
        "passthrough.chat", "passthrough.m", "passthrough.other_row.submit[0]", "passthrough.other_row.read[0]",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "method", "path", "query", "parts"),
    [
        ("POST /a/{x}", "POST", "/a/b%20c", "", {"x": "b c"}),
        ("/a/{x}", "POST", "/a/b", "", {"x": "b"}),
        ("POST /a/{x}", "GET", "/a/b", "", None),
        ("POST /a/{x}", "POST", "/a/b/c", "", None),
        ("POST /a/{x}", "POST", "/a/..", "", None),
        ("POST /a/{x}", "POST", "/a/%2e%2E", "", None),
        ("POST /a/{x}", "POST", "/a/b%2fc", "", None),
        ("POST /a/{x}", "POST", "/a/b%5cc", "", None),
        ("POST /a/{x}", "POST", "/a/", "", None),
        ("POST /m/{x}:run", "POST", "/m/a.b:run", "", {"x": "a.b"}),
        ("GET /a/{x*}", "GET", "/a/b/c", "", {"x": "b/c"}),
        ("GET /a/{x*}", "GET", "/a/b/../c", "", None),
        ("GET /a/{x*}", "GET", "/a/b//c", "", None),
        ("GET /a?id={x}", "GET", "/a", "y=1&id=b%2Fc", {"x": "b/c"}),
        ("GET /a?id={x}", "GET", "/a", "y=1&id=b", {"x": "b"}),
        ("GET /a?id={x}", "GET", "/a", "id=1&id=2", None),
        ("GET /a?id={x}", "GET", "/a", "", None),
    ],
)
def test_operations(text: str, method: str, path: str, query: str, parts: dict[str, str] | None) -> None:
    operation = read_operation(text)
    assert operation.match(method, path, query) == parts
    if parts is not None:
        filled, _, asked = operation.fill(parts).partition("?")
        assert operation.match(operation.method, filled, asked) == parts


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("X-Key", KeyPlace(header="x-key")), ("?key", KeyPlace(param="key")),
        ("Authorization: Token", KeyPlace(scheme="token")), ("authorization: Key", KeyPlace(scheme="key")),
    ],
)  # fmt: skip
def test_key_places(text: str, place: KeyPlace) -> None:
    assert read_key_place(text) == place


@pytest.mark.parametrize(
    ("document", "pointer", "count"),
    [
        ({"r": {"s": [{}, {"u": 1}]}}, "/r/s/*", 2), ({"r": {}}, "/r/s/*", 0), ({}, "/r/s/*", None),
        ({"d": [{"u": "x"}, {"u": ""}, {"u": None}, {}, 5]}, "/d/*/u", 1), ({"d": []}, "/d/*/u", 0),
        ({}, "/d/*/u", None), ({"d": None}, "/d/*/u", None), ([], "/d/*", None), ({"o": {"u": "x"}}, "/o/u", 1),
        ({"o": {}}, "/o/u", 0), ({"d": {"a": 1}}, "/d/*", 0),
    ],
)  # fmt: skip
def test_count_at(document: Any, pointer: str, count: int | None) -> None:
    assert count_at(document, pointer) == count


def test_a_pointer_goes_into_a_text_of_json() -> None:
    """Such as the field of a form."""
    assert at_pointer({"a": '{"n": 4}'}, "/a/n") == 4
    assert at_pointer({"a": ' [{"n": 4}]'}, "/a/0/n") == 4
    for text in ("n", "{n", "4", "[" * 100_000):
        assert at_pointer({"a": text}, "/a/n") is None


def test_options_and_conditions() -> None:
    body = {"a": 5.0, "b": True, "c": {"d/e": ["x", {"f": None}]}, "n": 1.5}
    names = ["/a", "/b", "/c/d~1e/0", "/c/d~1e/1/f", "/c/d~1e/9", "/n", "/x", "kind"]
    found = read_options(names, {"kind": "k"}, body)
    assert list(found.values()) == ["5", "true", "x", "", "", "1.5", "", "k"]
    assert at_pointer(body, "/c/d~1e/-") is None
    assert format_value({"a": [1]}) == '{"a":[1]}'
    assert holds({"/a": ["4", "5"], "/x": ["", "y"]}, found)
    assert holds({"kind": ["k*"]}, found)
    assert not holds({"/x": ["?*"]}, found)
    assert not holds({"/a": ["5"], "/b": ["false"]}, found)


@pytest.mark.parametrize(
    ("text", "count"),
    [("5", 5), ("5.5", 6), ("5s", 5), ("5.0", 5), ("0", None), ("-1", None), ("1e3", None), ("", None), ("٣", None),
     ("9999999", None), ("0.2", 1), ("nan", None)],
)  # fmt: skip
def test_numbers(text: str, count: int | None) -> None:
    assert read_number(text) == count


# --------------------------------------------------------------------------------------------------------------- links


DOCUMENT: Any = {"a": [{"u": "x"}, {"u": 7}, {"u": "y"}, 5], "l": ["p", None, "q"], "~/": "z"}


@pytest.mark.parametrize(
    ("pointer", "texts"),
    [("/a/*/u", ["x", "y"]), ("/a/0/u", ["x"]), ("/l/*", ["p", "q"]), ("/~0~1", ["z"]), ("/a/u", []), ("/*/u", [])],
)
def test_texts_at(pointer: str, texts: list[str]) -> None:
    assert [container[name] for container, name in texts_at(DOCUMENT, pointer)] == texts


@pytest.mark.parametrize(
    ("address", "becomes", "ids"),
    [
        ("https://a.example/base/up/v1/video/7", "https://gw.example/p/v1/video/7", ["7"]),
        ("https://a.example/base/v1/video/7?x=1", "https://gw.example/p/v1/video/7?x=1", ["7"]),
        ("https://b.example/v1/video/7", "https://gw.example/p/v1/video/7", ["7"]),
        ("/v1/video/7", "https://gw.example/p/v1/video/7", ["7"]),
        ("https://a.example/other/7", None, []),
        ("https://a.example/v1/video/%2e%2e", None, []),
        ("http://[", None, []),
        ("", None, []),
    ],
)
def test_an_address_becomes_that_of_a_read(address: str, becomes: str | None, ids: list[str]) -> None:
    row = rows_of(built(row=GOOD | {"upstream_prefix": "/up", "links": ["/url"]}))["row"]
    answer = {"url": address, "other": address}
    assert replace_links(row, "/base", "https://gw.example/", answer) == (ids, True)
    assert answer == {"url": becomes, "other": address}


def test_an_answer_without_addresses_is_not_changed() -> None:
    row = rows_of(built(row=GOOD | {"links": ["/url", "/more/*/url"]}))["row"]
    for answer in ({}, {"url": None}, [], "text", {"more": [{"url": 5}]}):
        assert replace_links(row, "", "", answer) == ([], False)


def test_what_reads_by_rows_is_pure() -> None:
    assert complaints_of(impure, [f"gateway.wings.tasks.{name}" for name in ("formats", "settings")]) == ""
