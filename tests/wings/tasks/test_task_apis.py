"""What the clients of task APIs need of each ready row: their key where they put it, errors in their API's form, and
tasks that no other row's are mistaken for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.scripted import error_json, ok_json
from tests.flows import task_rows as scenario
from tests.flows.gateway_process import UPSTREAM_KEY, Gateway, eventually, key, secret, settings
from tests.flows.task_rows import SUBMISSIONS

SECRET = secret("alice")
PLAIN = "plain-words-as-a-key-of-words"

KEYS: dict[str, list[tuple[str, dict[str, str]]]] = {
    # novicezk/midjourney-proxy, docs/config.md; QuantumNous/new-api reads it with Bearer in front, too (TokenAuth).
    "midjourney": [("", {"mj-api-secret": SECRET}), ("", {"mj-api-secret": f"Bearer {SECRET}"})],
    "midjourney-modes": [("", {"mj-api-secret": SECRET})],
    "suno": [("", {"Authorization": f"Bearer {SECRET}"})],
    "kling": [("", {"Authorization": f"Bearer {SECRET}"})],
    "runway": [("", {"Authorization": f"Bearer {SECRET}"})],
    "luma": [("", {"Authorization": f"Bearer {SECRET}"})],
    "pika": [("", {"X-API-KEY": SECRET})],
    # googleapis/python-genai sends the header; ai.google.dev has the parameter in its older examples.
    "veo": [("", {"x-goog-api-key": SECRET}), (f"key={SECRET}", {})],
    "hailuo": [("", {"Authorization": f"Bearer {SECRET}"})],
    "flux": [("", {"x-key": SECRET}), ("", {"X-Key": SECRET})],  # docs.bfl.ai, quick start
    # replicate/replicate-python before 0.26 and many curl examples; Bearer since then.
    "replicate": [("", {"Authorization": f"Token {SECRET}"}), ("", {"Authorization": f"Bearer {SECRET}"})],
    "ideogram": [("", {"Api-Key": SECRET})],  # developer.ideogram.ai
    "recraft": [("", {"Authorization": f"Bearer {SECRET}"})],
    "videos": [("", {"Authorization": f"Bearer {SECRET}"})],
}
"""Where the clients of each API put their key: in the query, or in a header."""


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream) -> Gateway:
    return start_shared_gateway(
        settings(
            shared_upstream.url,
            passthrough=scenario.rows(own_errors=True),
            keys=[key("alice"), key("bob"), key("plain") | {"secret": PLAIN}],
        )
    )


@pytest.mark.parametrize(("row", "query", "headers"), [(row, *each) for row, places in KEYS.items() for each in places])
def test_a_key_is_taken_where_clients_put_it(
    gateway: Gateway, upstream: ScriptedUpstream, row: str, query: str, headers: dict[str, str]
) -> None:
    """Nothing of it is sent on, and the gateway's own key is."""
    upstream.answer_with(ok_json({"status": "no task"}))
    asked = SUBMISSIONS[row]
    path = asked.path + (f"?a=b&{query}" if query else "")
    assert gateway.post(path, asked.members, key=None, headers=headers).status == 200
    (received,) = upstream.requests
    whole = received.head + received.body
    assert SECRET.encode() not in whole
    assert UPSTREAM_KEY.encode() in whole
    assert received.path.removeprefix("/v1/") == asked.path[1:] + ("?a=b" if query else "")


@pytest.mark.parametrize("row", KEYS)
def test_a_key_is_taken_for_reads_and_lists_and_never_logged(gateway: Gateway, row: str) -> None:
    """Also where it stands in the path, as some write it."""
    _, headers = KEYS[row][0]
    asked, settings_of_row = SUBMISSIONS[row], scenario.rows()[row]
    paths = [("GET", asked.read.format(quote(SECRET)))] if asked.read else []
    paths += [
        (method, settings_of_row.get("prefix", "") + path.format(mode="fast", kind="videos", action="a", model="m"))
        for method, _, path in (each.partition(" ") for each in settings_of_row.get("lists", ()))
    ]
    for method, path in paths:
        assert gateway.send(method, path, {} if method == "POST" else None, key=None, headers=headers).status == 404
    gateway.post("/v1/models", {}, key=None)
    eventually(lambda: any(line.get("path") == "/v1/models" for line in gateway.lines()))
    assert SECRET not in gateway.stdout


def test_a_key_in_the_path_is_not_logged_either(gateway: Gateway) -> None:
    """Also one that does not look like a key, which the request bears where its row alone has one."""
    for headers in ({"mj-api-secret": PLAIN}, {"mj-api-secret": f"Bearer {PLAIN}"}):
        refused = gateway.get(f"/mj/task/{PLAIN}/fetch", key=None, headers=headers)
        assert refused.status == 404
        assert gateway.line(id=refused.id)["path"] == "/mj/task/***/fetch"


@pytest.mark.parametrize(
    "headers", [{"x-key": SECRET}, {"mj-api-secret": SECRET}, {"Authorization": f"Token {SECRET}"}]
)
def test_a_place_is_of_its_row_alone(gateway: Gateway, headers: dict[str, str]) -> None:
    for path in ("/suno/submit/music", "/v1/chat/completions"):
        assert gateway.post(path, {}, key=None, headers=headers).status == 401


def test_two_different_keys_are_refused(gateway: Gateway) -> None:
    headers = {"Authorization": f"Bearer {secret('bob')}", "x-key": SECRET}
    assert gateway.post("/bfl/v1/flux-pro-1.1", {}, key=None, headers=headers).status == 401


# -------------------------------------------------------------------------------------------------------------- errors


def mj(status: int, code: str, message: str, request_id: str) -> Any:
    properties = {"code": code, "request_id": request_id}
    return {"code": 4, "description": message, "result": None, "properties": properties}


def google(status: int, code: str, message: str, request_id: str) -> Any:
    names = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED"}
    return {"error": {"code": status, "message": message, "status": names[status]}}


def detail(status: int, code: str, message: str, request_id: str) -> Any:
    return {"detail": message}


ERRORS: dict[str, Callable[[int, str, str, str], Any] | None] = {
    "midjourney": mj,  # novicezk/midjourney-proxy, SubmitResultVO
    "midjourney-modes": mj,
    # Suno-API/Suno-API, lib/ginplus, DataResult
    "suno": lambda status, code, message, _: {"code": code, "message": message, "data": None},
    # app.klingai.com/global/dev/document-api: code, message, request_id; 0 is no error
    "kling": lambda status, code, message, request_id: {"code": status, "message": message, "request_id": request_id},
    "runway": lambda status, code, message, _: {"error": message},
    "luma": detail,  # lumalabs/lumaai-api, openapi.yaml, Error
    "pika": detail,
    "veo": google,  # google.aip.dev/193
    # MiniMax: base_resp of every answer
    "hailuo": lambda status, code, message, _: {"base_resp": {"status_code": status, "status_msg": message}},
    "flux": detail,
    # replicate/replicate-python, exceptions.py
    "replicate": lambda status, code, message, _: {"title": code, "detail": message, "status": status},
    "ideogram": lambda status, code, message, _: {"error": message},  # its OpenAPI, GenerateImageSafetyError
    "recraft": None,
    "videos": None,
}
"""The form of errors by row; None: that of OpenAI, whose SDK its clients use."""


def test_every_row_has_its_places_of_keys_and_its_form_of_errors() -> None:
    assert set(KEYS) == set(ERRORS) == set(scenario.rows())


@pytest.fixture(scope="module")
def refusing(start_shared_gateway: StartsGateways, simulated_port: int) -> Gateway:
    quotas = [{"requests": 1, "per": "minute"}]
    rows = scenario.rows(own_errors=True)
    keys = [key("alice"), *[key(f"k-{row}", quotas=quotas) for row in rows]]
    return start_shared_gateway(settings(f"http://127.0.0.1:{simulated_port}", passthrough=rows, keys=keys))


@pytest.mark.parametrize("row", ERRORS)
def test_every_error_is_in_the_form_of_the_api(refusing: Gateway, row: str) -> None:
    asked, prefix = SUBMISSIONS[row], scenario.rows()[row].get("prefix", "")
    form, who = ERRORS[row], f"k-{row}"
    errors = [(401, "invalid_request_error", refusing.post(asked.path, {}, key=None))]
    errors.append((401, "invalid_api_key", refusing.post(asked.path, {}, headers={"Authorization": "Bearer sk-wrong"})))
    errors.append((400, "unsupported_parameter", refusing.post(asked.path, {"webhook": "https://a.example/"})))
    if asked.read:
        errors.append((404, "task_not_found", refusing.get(asked.read.format("9" * 16))))
    if prefix:
        errors.append((404, "invalid_request_error", refusing.get(f"{prefix}/no/such/path/at/all")))
    if row == "midjourney-modes":  # it has no prefix
        errors.append((404, "invalid_request_error", refusing.send("PUT", asked.path, {})))
    assert scenario.submit(refusing, row, who).status in (200, 201)
    errors.append((429, "rate_limit_exceeded", scenario.submit(refusing, row, who)))
    for status, code, answer in errors:
        assert answer.status == status, answer
        assert answer.headers["content-type"] == "application/json"
        if form is None:
            assert answer.error["code"] in (code, None)
            continue
        (message,) = {text for text in texts_in(answer.json) if " " in text}
        assert answer.json == form(status, code, message, answer.id)


def texts_in(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for each in value.values() for text in texts_in(each)]
    return [value] if isinstance(value, str) else []


def test_what_the_upstream_refuses_is_in_the_form_of_the_api(gateway: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(error_json(400, message="The prompt is too long."))
    refused = gateway.post("/bfl/v1/flux-pro-1.1", {"prompt": "cat"})
    assert (refused.status, refused.json) == (400, {"detail": "The prompt is too long."})


# --------------------------------------------------------------------------------------------------------------- bonds


def api(prefix: str, **more: Any) -> dict[str, Any]:
    return {
        "upstream": "main", "prefix": prefix, "submit": ["POST /make"], "read": ["GET /made/{task}"], "task": "/id",
        "done": {"/state": "done"}, "also": ["/file"], **more,
    }  # fmt: skip


@pytest.fixture(scope="module")
def twins(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, store_url: str) -> Gateway:
    """Two APIs behind one upstream, and a second row of the first."""
    rows = {"one": api("/one", key_in=["?auth"]), "two": api("/two"), "one-fast": api("/fast", tasks_of="one")}
    store = {"store": {"url": store_url}} if store_url else {}
    keys = [key("alice"), key("bob")]
    return start_shared_gateway(settings(shared_upstream.url, passthrough=rows, keys=keys, **store))


def test_two_apis_may_give_the_same_id(twins: Gateway, upstream: ScriptedUpstream) -> None:
    state = {"id": 7, "state": "done", "file": 9}
    upstream.answer_with(ok_json({"id": 7}), ok_json({"id": 7}), always=ok_json(state))
    assert twins.post("/one/make", {}, key="alice").status == 200
    assert twins.post("/two/make", {}, key="bob").status == 200
    for prefix, owner, other in (("/one", "alice", "bob"), ("/fast", "alice", "bob"), ("/two", "bob", "alice")):
        assert twins.get(f"{prefix}/made/7", key=owner).json == state
        assert twins.get(f"{prefix}/made/9", key=owner).json == state  # a further id of the same task
        for task in (7, 9):
            refused = twins.get(f"{prefix}/made/{task}", key=other)
            assert (refused.status, refused.error["code"]) == (404, "task_not_found")
            assert f"'{task}'" in refused.error["message"]


def test_a_parameter_with_the_key_is_not_sent_on(twins: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json({}))
    assert twins.post(f"/one/make?Auth={SECRET}&a=b", {}, key=None).status == 401  # names are as they are
    assert twins.post(f"/one/make?auth={SECRET}&a=b&auth={SECRET}", {}, key=None).status == 200
    (received,) = upstream.requests
    assert received.path.endswith("/one/make?a=b")
    assert SECRET.encode() not in received.head


def test_rows_of_one_api_have_their_tasks_in_common(twins: Gateway, upstream: ScriptedUpstream) -> None:
    upstream.answer_with(ok_json({"id": "f-1"}), always=ok_json({"id": "f-1", "state": "running"}))
    assert twins.post("/fast/make", {}).status == 200
    assert [twins.get(f"{prefix}/made/f-1").status for prefix in ("/fast", "/one", "/two")] == [200, 200, 404]
