"""Nothing of the upstream's account leaves in a good answer that states why something failed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.format import ScanInput
from gateway.formats.reader import ERRORS
from gateway.formats.sse import LONG_EVENT
from gateway.formats.table import FORMATS
from gateway.upstream import refusal
from gateway.upstream.ask import cleaned_body
from gateway.upstream.connection import Head
from gateway.wings.stored.batch_results import MAX_HELD_BYTES, CleanedResults
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes import forms, scripted
from tests.fakes.scripted import ok_json
from tests.fakes.turns import MOST_CALLS, counted
from tests.flows import task_rows as scenario
from tests.flows.gateway_process import UPSTREAM_KEY, Gateway, model, settings

ORGANIZATION = "org-abcdefghijklmnop1234"
REASON = f"No rest for {ORGANIZATION} at http://10.1.2.3:8000 with {UPSTREAM_KEY}"
HIDE = [(UPSTREAM_KEY, "***")]
PARTS = (ORGANIZATION, "10.1.2.3", UPSTREAM_KEY)


@pytest.mark.parametrize("name", sorted(refusal.REASONS))
@pytest.mark.parametrize("inside", [lambda text: text, lambda text: {"message": text}, lambda text: [{"a": [text]}]])
async def test_reasons_are_cleaned_and_all_else_stays(name: str, inside: Any) -> None:
    answer = {"id": "a", "input": REASON, "output": [{name: inside(REASON), "text": REASON}], "error": None}
    cleaned = json.loads(await cleaned_body(json.dumps(answer).encode(), [(UPSTREAM_KEY, "***")]))
    assert (cleaned["input"], cleaned["output"][0]["text"]) == (REASON, REASON)
    assert not [part for part in PARTS if part in json.dumps(cleaned["output"][0][name])]


@pytest.mark.parametrize("body", [b'{"error": null, "a": "10.1.2.3"}', b'{"message": "done"}', b"[]", b""])
async def test_an_answer_without_a_reason_to_clean_stays_as_it_came(body: bytes) -> None:
    assert await cleaned_body(body, ()) == body


@pytest.mark.parametrize("name", ["tools", "instructions", "input", "text", "prompt"])
async def test_the_clients_own_words_in_an_answer_are_not_cleaned(name: str) -> None:
    answer = {"status": "in_progress", name: [{"properties": {"message": {"description": REASON}}}], "error": REASON}
    cleaned = json.loads(await cleaned_body(json.dumps(answer).encode(), [(UPSTREAM_KEY, "***")]))
    assert cleaned[name] == answer[name]
    assert not [part for part in PARTS if part in cleaned["error"]]


async def test_a_long_reason_is_cut() -> None:
    answer = {"error": {"message": "x" * 10**6 + REASON}}
    cleaned = await cleaned_body(json.dumps(answer).encode(), [(UPSTREAM_KEY, "***")])
    assert len(cleaned) < 50_000


async def test_the_reason_in_one_that_is_deep_is_cleaned() -> None:
    body = b'{"a": ' + b"[" * 10**5 + b"]" * 10**5 + b', "error": "' + REASON.encode() + b'"}'
    cleaned = (await cleaned_body(body, [(UPSTREAM_KEY, "***")])).decode()
    assert not [part for part in PARTS if part in cleaned]


def by_members(value: Any, *, is_reason: bool = False) -> Any:
    """What a cleaned value is, from the value."""
    if isinstance(value, str):
        return refusal.cleaned(value, HIDDEN) if is_reason else value
    if isinstance(value, list):
        return [by_members(each, is_reason=is_reason) for each in value]
    if not isinstance(value, dict):
        return value
    echoed = () if is_reason else ("input", "metadata", "tools")
    return {
        name: each if name in echoed else by_members(each, is_reason=is_reason or name == "error")
        for name, each in value.items()
    }


BASE_URL = "http://api.main.example:8000/v1"
HIDDEN = [("key of the upstream", "***"), (BASE_URL, "the upstream"), ("api.main.example", "the upstream")]
TEXTS = st.text(max_size=20) | st.sampled_from([REASON, "\\", '"', "{[", "key of the upstream", f"\n{BASE_URL}\u00e9"])
NAMES = st.sampled_from(["error", "input", "metadata", "tools", "a", 'error"', "\\"]) | TEXTS
VALUES: st.SearchStrategy[Any] = st.recursive(
    TEXTS | st.none() | st.integers(), lambda inside: st.lists(inside) | st.dictionaries(NAMES, inside)
)


@given(value=VALUES, is_ascii=st.booleans(), indent=st.sampled_from([None, 1]), cuts=st.lists(st.integers(0, 10**4)))
def test_json_is_cleaned_wherever_it_is_cut(value: Any, is_ascii: bool, indent: int | None, cuts: list[int]) -> None:
    written = json.dumps({"a": value, "error": value}, ensure_ascii=is_ascii, indent=indent).encode()
    cleaner = refusal.cleaner_of(HIDDEN, ERRORS)
    places = sorted({0, len(written), *[cut % len(written) for cut in cuts]})
    came = b"".join([cleaner.feed(written[here:there]) for here, there in pairwise(places)])
    came += cleaner.feed(b"", is_last=True)
    expected = by_members({"a": value, "error": value})
    assert json.loads(came) == expected
    if json.loads(written) == expected:
        assert came == written


WORST: dict[str, Callable[[int], str]] = {
    "deep": lambda size: "[" * size + "]" * size,
    "objects": lambda size: json.dumps([{"x": 1}] * (size // 5)),
    "lists": lambda size: json.dumps([[]] * (size // 2)),
    "numbers": lambda size: json.dumps([0] * size),
    "members": lambda size: json.dumps({f"{place}": 0 for place in range(size // 5)}),
    "escapes": lambda size: json.dumps("\x01" * (size // 3)),
    "text": lambda size: json.dumps("x" * size * 2),
    "reasons": lambda size: json.dumps([{"error": REASON}] * (size // 50)),
    "whitespace": lambda size: '{"error":' + " " * size + "null}",
    "names": lambda size: json.dumps(["error"] * (size // 5)),
}


@pytest.mark.parametrize("content", WORST)
async def test_a_long_body_is_cleaned_in_short_turns(content: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = f'{{"a": {WORST[content](200_000)}, "error": {json.dumps(REASON)}}}'.encode()
    with counted(monkeypatch) as turns:
        cleaned = await asyncio.create_task(cleaned_body(body, HIDE))
    assert turns.most <= MOST_CALLS, turns.most
    assert turns.longest_json <= 65_536
    assert not [part for part in PARTS if part.encode() in cleaned[-200:]]


@pytest.mark.parametrize("name", sorted(name for name, spec in FORMATS.items() if spec.scan is not None))
@pytest.mark.parametrize("secret", [ORGANIZATION, "10.1.2.3", UPSTREAM_KEY])
def test_no_secret_passes_between_two_pieces_of_a_long_event(name: str, secret: str) -> None:
    """In an error, or in that of an item; of an event of any type."""
    make = FORMATS[name].scan  # type: ignore[index]
    assert make is not None
    reason = f"No rest for {secret} today"
    for inside in ({"error": reason}, {"error": {"message": reason}}, {"item": {"type": "mcp_call", "error": reason}}):
        event = f"data: {json.dumps({'type': 'response.x', 'filling': 'z' * LONG_EVENT * 2, **inside})}\n\n".encode()
        begins = event.index(secret.encode())
        for cut in (begins + 1, begins + len(secret) // 2, begins + len(secret) - 1):
            scan = make(ScanInput(clean=partial(refusal.cleaned, hide=HIDE)))
            came = b"".join([scan.feed(piece)[0] for piece in (event[:LONG_EVENT], event[LONG_EVENT:cut], event[cut:])])
            came += scan.finish()
            assert b"zzz" in came
            assert secret.encode() not in came


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    models = {"gpt-4.1": model("responses"), "emb": model("embeddings")}
    return start_shared_gateway(settings(shared_upstream.url, models=models, files={"upstream": "main"}))


LINE = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "emb", "input": "Hi"}}


def file(upstream: ScriptedUpstream, gateway: Gateway, purpose: str, content: bytes) -> str:
    upstream.answer_with(ok_json({"id": f"file-{purpose}", "object": "file", "status_details": REASON}))
    made = gateway.send("POST", "/v1/files", forms.form(("purpose", purpose), ("file", content)), headers=forms.TYPE)
    assert not [part for part in PARTS if part in made.body.decode()]
    return str(made.json["id"])


def made(gateway: Gateway, upstream: ScriptedUpstream, path: str) -> str:
    """An object of this kind; the path of a request that reads it."""
    if path == "/v1/files":
        return f"{path}/{file(upstream, gateway, 'user_data', b'x')}"
    if path == "/v1/batches":
        given = file(upstream, gateway, "batch", json.dumps(LINE).encode())
        asked = {"input_file_id": given, "endpoint": "/v1/embeddings", "completion_window": "24h"}
        upstream.answer_with(ok_json({"id": "batch_1", "object": "batch", "status": "validating"}))
    elif path == "/v1/responses":
        asked = {"model": "gpt-4.1", "input": "Hi"}
        upstream.answer_with(ok_json({"id": "resp_1", "object": "response", "status": "completed", "output": []}))
    else:
        asked = {}
        upstream.answer_with(ok_json({"id": "conv_1", "object": "conversation"}))
    answer = gateway.post(path, asked)
    assert answer.status == 200, answer.body
    return f"{path}/{answer.json['id']}"


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches", "/v1/responses", "/v1/conversations"])
def test_kept_objects(gateway: Gateway, shared_upstream: ScriptedUpstream, path: str) -> None:
    where = made(gateway, shared_upstream, path)
    kept = {
        "id": where.rpartition("/")[2], "status": "failed", "metadata": {"note": ORGANIZATION},
        "error": {"code": "server_error", "message": REASON}, "errors": {"data": [{"message": REASON}]},
        "status_details": REASON, "last_error": {"message": REASON},
    }  # fmt: skip
    for asked in (where, path) if path in ("/v1/files", "/v1/batches") else (where,):
        shared_upstream.answer_with(ok_json(kept), ok_json(kept), ok_json(kept))
        answer = gateway.get(asked)
        assert answer.status == 200
        shown = answer.json["data"][0] if asked == path else answer.json
        assert shown["metadata"]["note"] == ORGANIZATION
        assert not [part for part in PARTS if part in json.dumps(shown | {"metadata": None})]


@pytest.mark.parametrize("row", ["kling", "runway", "luma"])
def test_tasks(start_gateway: StartsGateways, simulated_port: int, tmp_path: Any, row: str) -> None:
    gateway = start_gateway(scenario.config(f"http://127.0.0.1:{simulated_port}", f"embedded:{tmp_path}/store"))
    asked = scenario.SUBMISSIONS[row]
    shown = {
        "data": {"task_status": "failed", "task_status_msg": REASON}, "status": "FAILED", "state": "failed",
        "failure": REASON, "failure_reason": REASON, "message": REASON,
    }  # fmt: skip
    made = gateway.post(asked.path, asked.members | {"simulate": {"takes_s": 0, "shows": shown}})
    assert made.status in (200, 201), made.body
    read = gateway.get(asked.read.format(scenario.id_in(row, made)))
    assert read.status == 200
    assert "No rest for" in read.body.decode()
    assert ORGANIZATION not in read.body.decode()
    assert "10.1.2.3" not in read.body.decode()


# ------------------------------------------------------------------------------------------- items of a good answer


def items_with_errors() -> Iterator[str]:
    """The types of items that have an error of their own, by OpenAI's SDK."""
    from openai.types.responses.response_output_item import ResponseOutputItem

    for item in get_args(get_args(ResponseOutputItem)[0]):
        if "error" in item.model_fields:
            yield from get_args(item.model_fields["type"].annotation)


@pytest.mark.parametrize("filling", ["", "x " * 50_000], ids=["short", "long"])
def test_errors_of_items_are_cleaned_and_all_else_stays(
    gateway: Gateway, shared_upstream: ScriptedUpstream, filling: str
) -> None:
    """In a plain answer and in each event of a stream, also in one that passes in pieces."""
    kinds = [*items_with_errors()]
    assert {"mcp_call", "mcp_list_tools", "image_generation_call"} <= {*kinds}
    errors = (REASON, {"type": "http_error", "code": 500, "message": REASON}, {"type": "x_error", "content": [REASON]})
    text = {"type": "message", "content": [{"type": "output_text", "text": f"{filling} said {ORGANIZATION}"}]}
    tool = {"type": "function", "name": "f", "parameters": {"properties": {"error": {"description": ORGANIZATION}}}}
    metadata = {} if filling else {"error": ORGANIZATION}
    for kind in kinds:
        for error in errors:
            item = {"type": kind, "id": "item_1", "status": "failed", "error": error, "output": None}
            whole = {
                "id": "resp_1", "object": "response", "status": "completed", "tools": [tool], "output": [text, item],
                "error": None, "metadata": metadata, "usage": {"input_tokens": 1, "output_tokens": 2},
            }  # fmt: skip
            events = [
                {"type": "response.created", "response": {**whole, "output": [], "status": "in_progress"}},
                {"type": f"response.{kind}.failed", "item_id": "item_1", "error": error},
                {"type": "response.output_item.done", "item": item},
                {"type": "response.completed", "response": whole},
            ]
            written = [f"event: {each['type']}\ndata: {json.dumps(each)}\n\n".encode() for each in events]
            for is_stream in (False, True):
                shared_upstream.answer_with(scripted.stream(written, done=False) if is_stream else ok_json(whole))
                came = gateway.post("/v1/responses", {"model": "gpt-4.1", "input": "Hi", "stream": is_stream})
                assert came.status == 200
                assert came.body.count(b"No rest for") == (3 if is_stream else 1)
                assert not [part for part in PARTS[1:] if part.encode() in came.body]
                kept = came.body.count(ORGANIZATION.encode())
                assert kept == (2 if filling else 3) + is_stream * (1 if filling else 2), came.body


# --------------------------------------------------------------------------------------------- results of batches

GOOD = {"choices": [{"message": {"content": REASON}}], "error": None}
SPEAKS = {"output": [{"content": [{"text": json.dumps({"error": REASON})}]}], "error": None}
LINES: dict[str, tuple[dict[str, Any], bool]] = {
    "a refused request": ({"response": {"status_code": 400, "body": {"error": {"message": REASON}}}}, True),
    "no answer": ({"custom_id": "a", "response": None, "error": {"code": "x", "message": REASON}}, True),
    "of Anthropic": ({"custom_id": "a", "result": {"type": "errored", "error": {"error": {"message": REASON}}}}, True),
    "a good answer": ({"custom_id": "a", "response": {"status_code": 200, "body": GOOD}, "error": None}, False),
    "an item": (
        {"response": {"status_code": 200, "body": {"output": [{"type": "mcp_call", "error": {"message": REASON}}]}}},
        True,
    ),
    "one that speaks of errors": ({"custom_id": "a", "response": {"status_code": 200, "body": SPEAKS}}, False),
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
def test_the_error_in_a_line_of_results_is_cleaned_and_all_else_stays(name: str) -> None:
    line, has_failed = LINES[name]
    written = json.dumps(line).encode()
    cleaned = refusal.cleaner_of(HIDE, ERRORS).feed(written, is_last=True)
    if not has_failed:
        assert cleaned == written
        return
    assert "No rest for" in cleaned.decode()
    assert not [part for part in PARTS if part in cleaned.decode()]


@pytest.mark.parametrize("size", [1, 100, 5_000, 10**6])
async def test_results_are_cleaned_as_they_come(size: int) -> None:
    """In pieces of any size; a long line passes in pieces, too, and its error is cleaned as a text."""
    long = {"error": None, "x": "x" * (MAX_HELD_BYTES + 9) if size > 1 else "x"}
    lines = [json.dumps(each).encode() for each, _ in LINES.values()]
    given = b"\n".join([*lines, b"", json.dumps(long).encode(), *lines])
    results = CleanedResults(Head(200, ()), HIDE)
    came = (
        b"".join([await results.feed(given[at : at + size]) for at in range(0, len(given), size)]) + await results.end()
    )
    assert came.split(b"\n") == [
        refusal.cleaner_of(HIDE, ERRORS).feed(each, is_last=True) for each in given.split(b"\n")
    ]
    with_error = json.dumps({"error": REASON, "x": "x " * MAX_HELD_BYTES}).encode()
    results = CleanedResults(Head(200, ()), HIDE)
    cleaned = (await results.feed(with_error)).decode()
    assert "No rest for" in cleaned
    assert not [part for part in PARTS if part in cleaned]


SECRETS = (*[secret for secret, _ in HIDDEN], BASE_URL.replace("/", r"\/"), ORGANIZATION, "10.1.2.3", f"sk-{'a' * 40}")


@given(
    secret=st.sampled_from(SECRETS),
    before=st.integers(0, 9_000),
    behind=st.integers(0, 9_000),
    edge=st.sampled_from(['\\"', " ", "\\n", "\u00e9 "]),
    cuts=st.lists(st.integers(0, 20_000), max_size=8),
    has_error_first=st.booleans(),
)
async def test_no_secret_passes_between_two_pieces(
    secret: str, before: int, behind: int, edge: str, cuts: list[int], has_error_first: bool
) -> None:
    """However long the line is and wherever it is cut; a good line stays, also if it is cut within `"error": null`."""
    filling = f"m{'x' * before}{edge}{secret}{edge}{'y' * behind}"
    line = f'{{"error"  :  "{filling}"}}' if has_error_first else f'{{"a": "{"z" * 9_000}", "error": ["{filling}"]}}'
    good = f'{{"error": null, "a": "{filling}", "error" : {{}}}}'
    written = f"{line}\n{good}".encode()
    ends = written.find(b'"error"'), written.rfind(b'"error"')
    near = [here + 1 + cut % 20 for here in ends for cut in cuts]
    places = sorted({0, len(written), *[cut % len(written) for cut in cuts], *near})
    results = CleanedResults(Head(200, ()), HIDDEN)
    came = b"".join([await results.feed(written[here:there]) for here, there in pairwise(places)]) + await results.end()
    cleaned, passed = came.split(b"\n")
    assert secret.encode() not in cleaned
    assert passed.decode() == good
    assert cleaned == refusal.cleaner_of(HIDDEN, ERRORS).feed(line.encode(), is_last=True)


@pytest.mark.parametrize("text", ["a-" * 10**5, "a." * 10**5])
def test_a_text_is_cleaned_in_time_that_grows_with_its_length(text: str) -> None:
    assert refusal.cleaned(text, ()) == text


def test_results_of_a_batch(gateway: Gateway, shared_upstream: ScriptedUpstream) -> None:
    where = made(gateway, shared_upstream, "/v1/batches")
    ended = {"id": where.rpartition("/")[2], "status": "completed", "error_file_id": "file-errors"}
    shared_upstream.answer_with(always=ok_json(ended))
    assert gateway.get(where).status == 200
    line = json.dumps(LINES["a refused request"][0]).encode()
    shared_upstream.answer_with(always=scripted.answer(line))
    answer = gateway.get("/v1/files/file-errors/content")
    assert answer.status == 200
    assert "No rest for" in answer.body.decode()
    assert not [part for part in PARTS if part in answer.body.decode()]
