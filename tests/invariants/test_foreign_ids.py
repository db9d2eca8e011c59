"""An id of another key is not found, whatever door, spelling, type and size of body it comes in."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from gateway.api import large_body
from gateway.api.acting_tools import acts
from gateway.api.file_ids import NAMES
from gateway.errors import InvalidRequest
from gateway.formats.table import FORMATS
from gateway.records import Endpoint
from gateway.wings.tasks.notation import read_reference, steps_of
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes import forms
from tests.fakes import responses_api as api
from tests.fakes.scripted import ok_json
from tests.flows.client import Answer
from tests.flows.gateway_process import Gateway, key, model, settings
from tests.flows.task_rows import SUBMISSIONS, rows

FOREIGN, OWN, TASK = "file-alices", "file-bobs", "7"
MARK = "THE_NAME"
"""Stands in a body for the name of the member that has the id."""

TURN = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}
PART = {"type": "input_file", MARK: 0}


class Door(NamedTuple):
    path: str
    body: Mapping[str, Any]


def _asked(name: str, **members: Any) -> Door:
    return Door(FORMATS[name].path, {"model": name, **members})  # type: ignore[index]


_PLACED = {"role": "user", "content": [PART]}

FILE_DOORS: dict[str, Door] = {
    "completions": _asked("completions", prompt="Hi", extra=PART),
    "chat": _asked("chat", messages=[{"role": "user", "content": [{"type": "file", "file": {MARK: 0}}]}]),
    "embeddings": _asked("embeddings", input="Hi", extra=[PART]),
    "messages": _asked("messages", max_tokens=9, messages=[_PLACED]),
    "count_tokens": _asked("count_tokens", messages=[_PLACED]),
    "responses": _asked("responses", input=[_PLACED]),
    "input_tokens": _asked("input_tokens", input=[_PLACED]),
    "compact": _asked("compact", input=[_PLACED]),
    "moderations": _asked("moderations", input="Hi", extra=PART),
    "rerank": _asked("rerank", query="Hi", documents=["Hi"], extra=PART),
    "images": _asked("images", prompt="Hi", mask=PART),
    "image_edits": _asked("image_edits", prompt="Hi", images=[PART]),
    "speech": _asked("speech", input="Hi", voice="alloy", extra=PART),
    "message_batches": Door(
        "/v1/messages/batches",
        {"requests": [{"custom_id": "a", "params": {"model": "messages", "max_tokens": 9, "messages": [_PLACED]}}]},
    ),
    "conversation": Door("/v1/conversations", {"items": [{"type": "message", **_PLACED}]}),
    "conversation items": Door("/v1/conversations/conv_bobs/items", {"items": [{"type": "message", **_PLACED}]}),
}

OTHERWISE: dict[str, str] = {
    "image_variations": "a form of files and plain fields",
    "transcriptions": "a form of files and plain fields",
    "translations": "a form of files and plain fields",
    "generate_content": "kept files are refused (GEMINI_BODIES)",
    "count_content_tokens": "kept files are refused (GEMINI_BODIES)",
    "embed_content": "kept files are refused (GEMINI_BODIES)",
    "batch_embed_contents": "kept files are refused (GEMINI_BODIES)",
    "batches": "names one file, as input_file_id (test_other_ids)",
    "realtime": "a socket: test_realtime_events",
}
"""Formats whose calls name files in another way, or not at all."""


def test_every_format_is_a_door_or_has_a_reason() -> None:
    """A new format has to be added to one of the tables."""
    assert FORMATS.keys() == (FILE_DOORS.keys() | OTHERWISE.keys()) - {"conversation", "conversation items"}
    assert not FILE_DOORS.keys() & OTHERWISE.keys()


def spellings(name: str) -> Iterator[str]:
    """The JSON of a name in the ways in which upstreams read it."""
    first, *rest = name.split("_")
    yield from (json.dumps(each) for each in (
        name, name.upper(), name.title(), first + "".join(map(str.title, rest)), f" {name} ", f"{name}[]",
        name.replace("i", "\u0130", 1), name.replace("i", "\u0131", 1), name.replace("s", "\u017f", 1),
        name.replace("k", "\u212a", 1),
    ))  # fmt: skip
    yield '"' + "".join(f"\\u{ord(letter):04x}" for letter in name) + '"'
    yield '"' + "".join(chr(ord(letter) + 0xFEE0) if letter.isalnum() else letter for letter in name) + '"'


def values(foreign: str, own: str | None = None) -> Iterator[str]:
    """The JSON of values that name this id."""
    text = json.dumps(foreign)
    yield from (text, f"[{text}]", f'{{"id": {text}}}', f'[["x", {text}]]')
    if own is not None:
        yield f"[{json.dumps(own)}, {text}]"
    if foreign.isdecimal():
        yield from (foreign, f"{foreign}.0", f"{foreign}e0")


def written(members: Mapping[str, Any], name: str, value: str, pad: int) -> bytes:
    """The body with this name and value at its mark, and so long a text beside them."""
    text = json.dumps(members)
    beside = f"{json.dumps('x' * pad)}" if pad else '"x"'
    found = text.replace(f'"{MARK}": 0', f'"beside": {beside}, {name}: {value}')
    assert found != text
    return found.encode()


SIZES = {"short": 0, "long": 9000, "large": 200_000}


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    made = start_shared_gateway(
        settings(
            shared_upstream.url,
            models={name: model(name if name in ENDPOINTS else PARTS[name]) for name in (*ENDPOINTS, *PARTS)},
            keys=[key("alice"), key("bob")], files={"upstream": "main"}, passthrough=rows(),
            server={"access_log": "off"},
        )
    )  # fmt: skip
    _keep(made, shared_upstream, "alice", FOREIGN, "alices")
    _keep(made, shared_upstream, "bob", OWN, "bobs")
    for row in REFERENCES:
        accepted, ended = _answers(rows()[row])
        shared_upstream.answer_with(ok_json(accepted), always=ok_json(ended))
        submission = SUBMISSIONS[row]
        submitted = made.post(submission.path, submission.members)
        assert submitted.status == 200
        made.call(submitted.id)  # it has ended, and is not polled any more
    return made


ENDPOINTS = (
    "completions", "chat", "embeddings", "messages", "responses", "moderations", "rerank", "images", "image_edits",
    "speech",
)  # fmt: skip
PARTS = {"count_tokens": "messages", "input_tokens": "responses", "compact": "responses"}


def _keep(gateway: Gateway, upstream: ScriptedUpstream, who: str, file: str, suffix: str) -> None:
    """A file, a conversation, and a response with an item."""
    upstream.answer_with(ok_json({"id": file, "object": "file"}))
    form = forms.form(("purpose", "user_data"), ("file", b"%PDF"))
    assert gateway.send("POST", "/v1/files", form, key=who, headers=forms.TYPE).status == 200
    upstream.answer_with(ok_json({"id": f"conv_{suffix}", "object": "conversation"}))
    assert gateway.post("/v1/conversations", {}, key=who).status == 200
    output = [api.message("Hi") | {"id": f"msg_{suffix}"}, {"type": "reasoning", "id": f"rs_{suffix}", "summary": []}]
    upstream.answer_with(ok_json(api.response(output, id=f"resp_{suffix}")))
    assert gateway.post("/v1/responses", {"model": "responses", "input": "Hi"}, key=who).status == 200


def _answers(row: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """An accepted submission of the task, and the task when it has ended."""
    return _object({**row.get("accepted", {}), row["task"]: TASK}), _object(row["done"])


def _object(values: Mapping[str, Any]) -> dict[str, Any]:
    """The object with these values, of a list the first, at their pointers."""
    found: dict[str, Any] = {}
    for pointer, value in values.items():
        *above, last = steps_of(pointer)
        inside = found
        for step in above:
            inside = inside.setdefault(step, {})
        inside[last] = value[0] if isinstance(value, list) else value
    return found


def refused(answer: Answer, name: str) -> bool:
    """Whether it is not found, or refused with the right name."""
    return answer.status == 404 or (answer.status == 400 and name in json.dumps(answer.error, ensure_ascii=False))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("door", FILE_DOORS)
def test_files(gateway: Gateway, upstream: ScriptedUpstream, door: str, name: str) -> None:
    path, members = FILE_DOORS[door]
    for size, pad in SIZES.items():
        bodies = [written(members, each, json.dumps(FOREIGN), pad) for each in spellings(name)]
        if size != "large":
            bodies += [written(members, f'"{name}"', each, pad) for each in values(FOREIGN, OWN)]
        for body in bodies:
            received = gateway.post(path, body, key="bob")
            assert received.status == 404, (size, body[-300:], received)
            assert b"No such File object" in received.body
    assert upstream.hits == 0


@pytest.mark.parametrize("door", ["chat", "responses", "conversation items"])
def test_own_files_pass(gateway: Gateway, upstream: ScriptedUpstream, door: str) -> None:
    path, members = FILE_DOORS[door]
    upstream.answer_with(always=ok_json({"id": "conv_bobs"} if "conv" in path else api.response()))
    for pad in SIZES.values():
        hits = upstream.hits
        gateway.post(path, written(members, '"file_id"', json.dumps(OWN), pad), key="bob")
        assert upstream.hits > hits
    hits = upstream.hits
    tool = {"type": "function", "function": {"name": "f", "parameters": {
        "type": "object", "properties": {"file_id": {"type": "string", "description": FOREIGN}},
    }}}  # fmt: skip
    if door == "chat":
        gateway.post(path, {"model": "chat", "messages": [TURN], "tools": [tool]}, key="bob")
        assert upstream.hits > hits


# ---------------------------------------------------------------------------------------------------------------- rows

REFERENCES = {
    name: [read_reference(each).pointer for each in row["refers"]] for name, row in rows().items() if row.get("refers")
}


def _named(row: str, pointer: str) -> Door:
    """A submission of this row that names a task at this pointer."""
    submission = SUBMISSIONS[row]
    *above, last = steps_of(pointer)
    inside: dict[str, Any] = {MARK: 0}
    for step in reversed(above):
        inside = {step: inside}
    return Door(submission.path, {**submission.members, **inside, "last": last})


@pytest.mark.parametrize(
    ("row", "pointer"), [(row, pointer) for row, pointers in REFERENCES.items() for pointer in pointers]
)
def test_tasks(gateway: Gateway, upstream: ScriptedUpstream, row: str, pointer: str) -> None:
    """Of every row that names earlier tasks."""
    door = _named(row, pointer)
    name = steps_of(pointer)[-1]
    is_text = pointer == "/content"
    value = f'"{TASK} U2"' if is_text else f'"{TASK}"'
    for pad in SIZES.values():
        for each in spellings(name):
            received = gateway.post(door.path, written(door.body, each, value, pad), key="bob")
            assert refused(received, name), (each, received)
        for each in () if is_text else values(TASK):
            received = gateway.post(door.path, written(door.body, f'"{name}"', each, pad), key="bob")
            assert received.error["code"] == "task_not_found", (each, received)
    assert upstream.hits == 0


def test_outer_names_of_tasks(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """Also where an array is in place of the object, and in the query."""
    path = SUBMISSIONS["luma"].path
    frames: Any
    for name in ("KeyFrames", "keyframes[]", "key_frames"):
        frames = {name: {"frame0": {"id": TASK}}}
        assert refused(gateway.post(path, {**SUBMISSIONS["luma"].members, **frames}, key="bob"), "keyframes")
    frames = {"keyframes": [{"frame0": {"id": TASK}}]}
    assert gateway.post(path, {**SUBMISSIONS["luma"].members, **frames}, key="bob").status == 400
    for query in ("task_id=7", "Task_Id=7", "continueClipId=7", "task_id[]=7"):
        assert gateway.post(f"/suno/submit/music?{query}", {"prompt": "la"}, key="bob").status == 400
    for query in ("task_id=8&Task_ID=7", "task_id=8&file_id=7", "task_id=8&task_id=7", "TASK_ID=7"):
        assert gateway.get(f"/minimax/v1/query/video_generation?{query}", key="bob").status in (400, 404)
    assert upstream.hits == 0


ODD_OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("kling", {"Mode": "pro"}, "mode"), ("kling", {"Duration": "10"}, "duration"), ("kling", {"duration ": 10}, "dur"),
    ("kling", {"Model_Name": "kling-v9"}, "model_name"), ("kling", {"modelName": "kling-v9"}, "model_name"),
    ("kling", {"CallBack_Url": "https://a.example/"}, "CallBack_Url"), ("kling", {"mode[]": "pro"}, "mode"),
    ("kling", {"callbackUrl": "https://a.example/" + "x" * 9000}, "callbackUrl"),
    ("kling", {"callback_url": {"url": "https://a.example/" + "x" * 600, "pad": ["x" * 9000]}}, "callback_url"),
    ("veo", {"parameters": {"duration_seconds": 60}}, "durationSeconds"),
    ("veo", {"Parameters": {"durationSeconds": 60}}, "parameters"),
    ("veo", {"parameters": [{"durationSeconds": 60}]}, "parameters"),
    ("veo", {"parameters": '{"durationSeconds": 4, "durationSeconds": 60}'}, "parameters"),
    ("veo", {"parameters": '{"durationSeconds": 60,}'}, "parameters"),
]  # fmt: skip


@pytest.mark.parametrize("pad", SIZES.values(), ids=SIZES)
def test_options_of_rows_have_one_spelling(gateway: Gateway, upstream: ScriptedUpstream, pad: int) -> None:
    """Or a client would pay the price of one and get the other."""
    for row, odd, right in ODD_OPTIONS:
        body = {**SUBMISSIONS[row].members, **odd, "image": "x" * pad}
        received = gateway.post(SUBMISSIONS[row].path, body)
        assert received.status == 400, (odd, received)
        assert right in received.error["message"]
    assert upstream.hits == 0


@pytest.mark.parametrize(
    "fields",
    [
        [("num_images[]", "8")], [("Num_Images", "8")], [("num_images", "1"), ("num_images", b"8")],
        [("num_images[0]", "8")], [("callback_url[]", "https://a.example/")],
    ],
    ids=str,
)  # fmt: skip
def test_fields_of_forms_have_one_spelling(
    gateway: Gateway, upstream: ScriptedUpstream, fields: list[forms.Field]
) -> None:
    form = forms.form(("prompt", "cat"), *fields)
    assert gateway.post("/ideogram/v1/ideogram-v3/generate", form, headers=forms.TYPE).status == 400
    assert upstream.hits == 0


# ---------------------------------------------------------------------------------------------------------- other ids

OTHER_IDS: dict[str, tuple[str, dict[str, Any]]] = {
    "previous response": ("/v1/responses", {"previous_response_id": "resp_alices"}),
    "conversation": ("/v1/responses", {"conversation": "conv_alices"}),
    "conversation object": ("/v1/responses", {"conversation": {"id": "conv_alices"}}),
    "two ids": ("/v1/responses", {"conversation": {"id": "conv_bobs", "ID": "conv_alices"}}),
    "reference": ("/v1/responses", {"input": [{"type": "item_reference", "id": "msg_alices"}]}),
    "other case": ("/v1/responses", {"input": [{"Type": "item_reference", "id": "msg_alices"}]}),
    "id in other case": ("/v1/responses", {"input": [{"type": "reasoning", "Id": "rs_alices"}]}),
    "ids": ("/v1/responses", {"input": [{"type": "item_reference", "id": ["msg_alices"]}]}),
    "unfinished item": ("/v1/responses", {"input": [{"type": "reasoning", "id": "rs_alices", "summary": []}]}),
    "item": ("/v1/conversations", {"items": [{"type": "reasoning", "id": "rs_alices", "summary": []}]}),
    "message": ("/v1/conversations/conv_bobs/items", {
        "items": [{"type": "message", "id": "msg_alices", "role": "user", "content": "Hi"}],
    }),
    "added reference": ("/v1/conversations/conv_bobs/items", {
        "items": [{"Type": "item_reference", "id": "msg_alices"}],
    }),
    "batch": ("/v1/batches", {
        "input_file_id": FOREIGN, "endpoint": "/v1/chat/completions", "completion_window": "24h",
    }),
}  # fmt: skip


@pytest.mark.parametrize("size", ["short", "large"])
@pytest.mark.parametrize("what", OTHER_IDS)
def test_other_ids(gateway: Gateway, upstream: ScriptedUpstream, what: str, size: str) -> None:
    path, members = OTHER_IDS[what]
    if path == "/v1/responses":
        members = {"model": "responses", "input": "Hi"} | members
    received = gateway.post(path, {**members, "beside": "x" * SIZES[size]}, key="bob")
    assert received.status in (400, 404)
    assert upstream.hits == 0


KEPT_PATHS: dict[str, str] = {"file": FOREIGN, "conversation": "conv_alices", "response": "resp_alices"}
"""An id of alice by the name of the part of the path."""

WITHOUT_IDS: dict[str, str] = {
    "model": "a name",
    "path": "a file of the gateway",
    "item": "below a conversation, which is asked for first",
    "batch": "of another type: an id of alice has to be unknown there as well",
    "deployment": "a name",
    "project": "a name, which the gateway does not read",
    "location": "a name, which the gateway does not read",
}


def test_ids_in_paths(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    """Of every path of clients in the document of the API."""
    document = gateway.get("/openapi.json", key=None).json["paths"]
    asked = 0
    for path, operations in document.items():
        names = [part.partition("}")[0] for part in path.split("{")[1:]]
        if not names or path.startswith(("/admin", "/dashboard", "/scim")):
            continue
        assert not set(names) - KEPT_PATHS.keys() - WITHOUT_IDS.keys(), f"{path}: an id that no table here has"
        if not KEPT_PATHS.keys() & set(names) and "batch" not in names:
            continue
        filled = path.replace("{item}", "msg_alices").replace("{batch}", FOREIGN)
        for name, value in KEPT_PATHS.items():
            filled = filled.replace(f"{{{name}}}", value)
        for method in {each.upper() for each in operations} & {"GET", "POST", "DELETE"}:
            for spelled in (filled, filled.replace("alices", "%61lices")):
                body = {} if method == "POST" else None
                received = gateway.send(method, spelled, body, key="bob")
                assert received.status == 404, (method, spelled, received)
                asked += 1
    assert asked > 20
    assert upstream.hits == 0


# -------------------------------------------------------------------------------------------------------------- gemini

GEMINI_URIS = (
    "files/abc", "Files/abc", "%66iles/abc", "v1beta/files/abc", "/v1beta/files/abc", " files/abc",
    "https://generativelanguage.googleapis.com/v1beta/files/abc",
    "HTTPS://GENERATIVELANGUAGE.googleapis.com/v1/FILES/abc",
    "https://generativelanguage.googleapis.com:443/v1beta/files/abc",
    "//generativelanguage.googleapis.com/v1beta/files/a",
    "https://reseller.example/v1beta/files/abc", "https://reseller.example/v1beta/files/abc:download?alt=media",
    "https://reseller.example/v1beta/%2566iles/abc", "https:\\\\reseller.example\\v1beta\\files\\abc",
)  # fmt: skip
PUBLIC_URIS = (
    "https://www.youtube.com/watch?v=abc", "gs://bucket/files/abc", "https://a.example/files/cat.png",
    "https://storage.googleapis.com/bucket/files/cat.png",
)  # fmt: skip


def _gemini(part: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    contents = [{"role": "user", "parts": [{"text": "Hi"}]}]
    named = [{"role": "user", "parts": [part]}]
    inside = {"functionResponse": {"name": "f", "response": {}, "parts": [part]}}
    yield "generate_content", {"contents": named}
    yield "generate_content", {"contents": [{"role": "user", "parts": inside}]}
    yield "generate_content", {"contents": contents, "systemInstruction": {"parts": [part]}}
    yield "generate_content", {"contents": contents, "system_instruction": {"parts": part}}
    yield "count_content_tokens", {"contents": named}
    yield "count_content_tokens", {"generateContentRequest": {"model": "models/m", "contents": named}}
    yield "embed_content", {"content": {"parts": [part]}}
    yield "batch_embed_contents", {"requests": [{"content": {"parts": [part]}}]}


GEMINI_PARTS: tuple[Callable[[str], dict[str, Any]], ...] = (
    lambda uri: {"fileData": {"fileUri": uri}},
    lambda uri: {"file_data": {"file_uri": uri}},
    lambda uri: {"fileData": {"fileUri": PUBLIC_URIS[0], "file_uri": uri}},
    lambda uri: {"fileData": {"fileUri": PUBLIC_URIS[0]}, "file_data": {"fileUri": uri}},
    lambda uri: {"FileData": {"FILEURI": [uri]}},
)


def test_files_that_gemini_keeps() -> None:
    """At every place of every format, and in every spelling."""
    for make in GEMINI_PARTS:
        for uri in GEMINI_URIS:
            for name, members in _gemini(make(uri)):
                with pytest.raises(Exception, match=r"'fileData' names something that the upstream keeps"):
                    FORMATS[name].read(json.dumps(members).encode(), lambda _: None)  # type: ignore[index]
        for uri in PUBLIC_URIS:
            for name, members in _gemini(make(uri)):
                FORMATS[name].read(json.dumps(members).encode(), lambda _: None)  # type: ignore[index]
    for given in ("cachedContent", "cached_content"):
        whole = {"generateContentRequest": {given: "cachedContents/a", "contents": []}}
        with pytest.raises(Exception, match="cachedContent"):
            FORMATS["count_content_tokens"].read(json.dumps(whole).encode(), lambda _: None)


MESSAGE: dict[str, Any] = {"model": "m", "max_tokens": 10, "messages": [{"role": "user", "content": "Hello"}]}
KEPT: list[tuple[Endpoint, dict[str, Any]]] = [
    ("messages", {"thread": {"type": "continue", "previous_message_id": "msg_1"}}),
    ("messages", {"Thread": {"type": "continue", "previous_message_id": "msg_1"}}),
    ("messages", {"thread": {"type": "create"}, "system": "x" * 100_000}),
    ("count_tokens", {"thread": {"type": "continue", "previous_message_id": "msg_1"}}),
    ("chat", {"extra_body": {"google": {"cached_content": "cachedContents/1"}}}),
    ("chat", {"extra_body": {"google": {"cachedContent": "cachedContents/1"}}, "user": "x" * 100_000}),
    ("chat", {"google": {"cached_content": "cachedContents/1"}}),
    ("chat", {"cachedContent": "cachedContents/1"}),
    ("chat", {"CACHED_CONTENT": ["cachedContents/1"]}),
]


@pytest.mark.parametrize(("endpoint", "more"), KEPT, ids=[f"{each[0]}{place}" for place, each in enumerate(KEPT)])
def test_what_an_account_keeps_is_refused(endpoint: Endpoint, more: dict[str, Any]) -> None:
    raw = json.dumps(MESSAGE | more).encode()
    for body in (raw, raw.replace(b"cached", b"\\u0063ached").replace(b'"thread"', b'"\\u0074hread"')):
        with pytest.raises(InvalidRequest) as refused:
            FORMATS[endpoint].read(body, lambda model: None)
        assert refused.value.code == "unsupported_parameter"


def test_a_cache_in_data_of_functions_passes() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"cachedContent": {}}}}}
    for more in (
        {"tools": [tool]},
        {"metadata": {"cached_content": "x"}},
        {"user": '"cachedContent": "cachedContents/1"'},
    ):
        FORMATS["chat"].read(json.dumps(MESSAGE | more).encode(), lambda model: None)


def test_data_of_functions_is_the_clients_own() -> None:
    """Gemini reads no file that a function's arguments or results name."""
    data = {"file_uri": "files/abc", "cachedContent": "x"}
    parts = [{"functionCall": {"name": "f", "args": data}}, {"functionResponse": {"name": "f", "response": data}}]
    schema = {"type": "OBJECT", "properties": {"cachedContent": {"type": "STRING"}}}
    tools = [{"functionDeclarations": [{"name": "f", "parameters": schema}]}]
    body = json.dumps({"contents": [{"role": "user", "parts": parts}], "tools": tools}).encode()
    FORMATS["generate_content"].read(body, lambda _: None)


# --------------------------------------------------------------------------------- what a large body is judged by

ACTING: tuple[dict[str, Any], ...] = (
    {"tools": [{"type": "mcp", "server_label": "a"}]}, {"tools": [{"type": "function", "Type": "MCP"}]},
    {"prompt": {"id": "pmpt_a"}},
    {"mcp_servers": [{"type": "url"}]}, {"input": [{"type": "message", "tools": [{"type": "mcp"}]}]},
)  # fmt: skip


@pytest.mark.rest
@pytest.mark.parametrize("pad", SIZES.values(), ids=SIZES)
def test_a_long_body_with_an_acting_tool_is_one(pad: int) -> None:
    """Its tools would act twice if it was hedged."""
    long = {"type": "function", "name": "f", "description": "x" * pad}
    for members in ({}, *ACTING):
        tools = (
            [*[long] * 1001, *members.get("tools", ())] if pad == SIZES["long"] else [long, *members.get("tools", ())]
        )
        raw = json.dumps({"model": "m", "input": "Hi"} | members | {"tools": tools}).encode()
        read = FORMATS["responses"].read(raw, lambda _: None)
        large = large_body.from_brief(json.loads(large_body.brief(read)), [raw])
        assert acts(read.document) == acts(large.document) == bool(members)


def test_objects_in_a_large_body_keep_their_own_values() -> None:
    """By these it is decided whether a call reasons, and for whom it is."""
    thinking = {"type": "enabled", "budget_tokens": 9, "beside": "x" * 9000}
    many = {f"n{number}": number for number in range(5000)} | {"user_id": "u"}
    raw = json.dumps({"model": "m", "prompt": "Hi", "thinking": thinking, "metadata": many}).encode()
    read = FORMATS["completions"].read(raw, lambda _: None)
    members = large_body.from_brief(json.loads(large_body.brief(read)), [raw]).document.members
    assert members["thinking"] == {"type": "enabled", "budget_tokens": 9}
    assert members["metadata"] == {"user_id": "u"}


@pytest.mark.parametrize("inside", ["\r", "\r\r"])
def test_a_line_of_a_batch_is_one_line(gateway: Gateway, upstream: ScriptedUpstream, inside: str) -> None:
    """Readers that end lines at a carriage return would find a request that was not checked."""
    request = {"custom_id": "b", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "other"}}
    body = f'{{"model": "chat", "messages": [{json.dumps(TURN)}], "x": {inside}{json.dumps(request)}{inside}}}'
    line = f'{{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {body}}}\r\n'
    form = forms.form(("purpose", "batch"), ("file", line.encode()))
    received = gateway.send("POST", "/v1/files", form, headers=forms.TYPE)
    assert received.refusal == (400, "invalid_request_error", "file", "invalid_batch_line")
    assert "carriage return" in received.error["message"]
    assert upstream.hits == 0
