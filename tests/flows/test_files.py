"""Files that an upstream keeps: each belongs to the key that uploaded it, at every gateway of a store."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from tests.conftest import ScriptedUpstream, StartsGateways, StartsProcesses, start_pair
from tests.fakes import forms
from tests.fakes.scripted import answer, cut_mid_body, error_json, ok_json, raw

from .client import Answer
from .gateway_process import CHAT, SIMULATOR, Gateway, eventually, key, model, secret, settings

PDF = b"%PDF-1.4 " + bytes(range(256)) * 40
EXPIRES = b'name="expires_after[seconds]"\r\n\r\n2592000\r\n'


def config(upstream: str, store: str, **more: Any) -> dict[str, Any]:
    return settings(
        upstream,
        upstreams={"other": {"base_url": upstream, "api_key": "sk-upstream-other-that-nobody-may-see"}},
        models={
            CHAT: model("chat"), "elsewhere": model("chat", "other"), "gpt-4.1": model("responses"),
        },
        keys=[key("alice", team="red"), key("bob", team="red"), key("carol"), key("dave"), key("erin"),
              key("paced", quotas=[{"requests": 5, "per": "hour"}, {"requests": 9, "per": "month"}])],
        teams={"red": {}},
        files={"upstream": "main", "max_per_key": 40},
        server={"workers": 2, "access_log": "json"},
        store={"url": store},
        **more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def gateways(start_shared_gateway: StartsGateways, shared_upstream: ScriptedUpstream, store_url: str) -> list[Gateway]:
    return start_pair(start_shared_gateway, config(shared_upstream.url, store_url), store_url)


def file_object(made: str, **more: Any) -> dict[str, Any]:
    return {
        "id": made,
        "object": "file",
        "bytes": 3,
        "created_at": 1,
        "filename": "a.pdf",
        "purpose": "user_data",
    } | more


_made = iter(range(1, 10**6))


def upload(gateway: Gateway, upstream: ScriptedUpstream, who: str = "alice", *fields: forms.Field) -> str:
    made = f"file-{next(_made):032x}"
    upstream.answer_with(ok_json(file_object(made)))
    said = send(gateway, who, *(fields or (("purpose", "user_data"), ("file", PDF))))
    assert (said.status, said.json["id"]) == (200, made), said
    return made


def send(gateway: Gateway, who: str, *fields: forms.Field) -> Answer:
    return gateway.send("POST", "/v1/files", forms.form(*fields), key=who, headers=forms.TYPE)


def test_an_upload_is_the_clients_own_bytes_with_an_end(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    upload(gateways[0], upstream)
    sent = upstream.requests[-1]
    own = forms.form(("purpose", "user_data"), ("file", PDF))
    assert (sent.method, sent.path) == ("POST", "/v1/files")
    assert sent.body.endswith(own)
    assert EXPIRES in sent.body[: -len(own)]
    upload(
        gateways[0], upstream, "alice",
        ("purpose", "vision"), ("expires_after[anchor]", "created_at"), ("expires_after[seconds]", "3600"),
        ("file", PDF),
    )  # fmt: skip
    assert EXPIRES not in upstream.requests[-1].body


@pytest.mark.parametrize("place", ["known", "unknown"])
def test_another_key_finds_nothing(gateways: list[Gateway], upstream: ScriptedUpstream, place: str) -> None:
    made = upload(gateways[0], upstream) if place == "known" else "file-0"
    before = upstream.hits
    gateway = gateways[1]
    for said in (
        gateway.get(f"/v1/files/{made}", key="bob"),
        gateway.send("DELETE", f"/v1/files/{made}", key="bob"),
        gateway.get(f"/v1/files/{made}/content", key="bob"),
    ):
        assert said.refusal == (404, "invalid_request_error", "id", None)
        assert said.error["message"] == f"No such File object: {made}"
    named: dict[str, Any] = {"type": "file", "file": {"file_id": made}}
    asked = json.dumps({"model": CHAT, "messages": [{"role": "user", "content": [named]}]})
    for body in (asked, asked.replace("file_id", "file\\u005fid"), asked.replace("file_id", "File_ID")):
        said = gateway.post("/v1/chat/completions", body.encode(), key="bob")
        assert said.refusal == (404, "invalid_request_error", "file_id", None)
    item = {"role": "user", "content": [{"type": "input_file", "file_id": made}]}
    long = {"type": "input_text", "text": "x" * 100_000}
    for content in ([item], [{"role": "user", "content": [long]}, item]):
        said = gateway.post("/v1/responses", {"model": "gpt-4.1", "input": content}, key="bob")
        assert said.refusal == (404, "invalid_request_error", "file_id", None)
    assert gateway.get(f"/v1/responses/{made}", key="alice").status == 404  # it is no response
    assert upstream.hits == before


def test_a_call_that_names_a_file_goes_where_it_is_kept(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    made = upload(gateways[0], upstream)
    content = [{"type": "file", "file": {"file_id": made}}]
    messages = [{"role": "user", "content": content}]
    upstream.answer_with(ok_json())
    assert gateways[1].chat(messages=messages).status == 200
    refused = gateways[1].chat(model="elsewhere", messages=messages)
    assert refused.refusal == (400, "invalid_request_error", "model", "model_mismatch")


def test_the_list_is_the_keys_own(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    made = [upload(gateways[0], upstream, "dave") for _ in range(3)]
    upload(gateways[0], upstream, "bob")
    upstream.answer_with(
        *[ok_json(file_object(made[2])), error_json(404, message="gone"), ok_json(file_object(made[0]))]
    )
    seen = gateways[1].get("/v1/files?limit=3", key="dave").json
    assert {row["id"] for row in seen["data"]} <= set(made)
    assert len(seen["data"]) == 2
    upstream.answer_with(ok_json(file_object(made[2])))
    page = gateways[1].get("/v1/files?limit=1&purpose=user_data", key="dave").json
    assert (len(page["data"]), page["has_more"], page["last_id"]) == (1, True, made[2])
    assert gateways[1].get("/v1/files?purpose=batch", key="dave").json == {
        "object": "list",
        "data": [],
        "has_more": False,
    }
    assert gateways[1].get("/v1/files?after=file-0", key="dave").refusal[2] == "after"
    for name, value in (("limit", "0"), ("limit", f"000000001{'9' * 5000}"), ("order", "newest")):
        assert gateways[1].get(f"/v1/files?{name}={value}", key="dave").refusal[2] == name


def test_a_list_of_objects_without_ids(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    """An upstream that answers so does not cause a 500."""
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": CHAT, "messages": []}}
    line["body"] |= {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5}  # type: ignore[operator]
    requests = ("file", json.dumps(line).encode())
    made = upload(gateways[0], upstream, "erin", ("purpose", "batch"), requests)
    upstream.answer_with(ok_json({"id": "batch_1", "status": "in_progress"}), always=ok_json({"more": "é"}))
    asked = {"input_file_id": made, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    assert gateways[0].post("/v1/batches", asked, key="erin").status == 200
    for path, name in (("/v1/files", made), ("/v1/batches", "batch_1")):
        page = gateways[0].get(path, key="erin").json
        assert page == {
            "object": "list", "data": [{"more": "é"}], "has_more": False, "first_id": name, "last_id": name,
        }  # fmt: skip
    upstream.answer_with(always=ok_json({"id": "batch_1", "status": "failed"}))
    eventually(lambda: gateways[0].calls("erin"))  # it is polled no more


def test_a_deleted_file_is_unknown(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    made = upload(gateways[0], upstream)
    upstream.answer_with(ok_json({"id": made, "object": "file", "deleted": True}))
    assert gateways[1].send("DELETE", f"/v1/files/{made}").json["deleted"] is True
    assert (upstream.requests[-1].method, upstream.requests[-1].path) == ("DELETE", f"/v1/files/{made}")
    assert gateways[0].get(f"/v1/files/{made}").status == 404


def test_content_is_relayed_as_it_is(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    made = upload(gateways[0], upstream)
    whole = bytes(range(256)) * 8192
    upstream.answer_with(answer(whole, headers=[("Content-Type", "application/pdf"), ("X-Secret", "1")]))
    said = gateways[1].get(f"/v1/files/{made}/content")
    assert (said.status, said.headers["content-type"]) == (200, "application/pdf")
    assert hashlib.sha256(said.body).digest() == hashlib.sha256(whole).digest()
    assert "x-secret" not in said.headers
    upstream.answer_with(error_json(404, message="It has expired.", type="invalid_request_error"))
    assert gateways[1].get(f"/v1/files/{made}/content").refusal == (404, "invalid_request_error", None, None)


def test_content_that_breaks_off_is_no_whole_message(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    made = upload(gateways[0], upstream)
    for trouble in (cut_mid_body, raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\nshort", then_close=True)):
        upstream.answer_with(trouble)
        with gateways[0].connect() as wire:
            head = f"GET /v1/files/{made}/content HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {secret('alice')}"
            wire.send(f"{head}\r\n\r\n".encode())
            assert not wire.read_to_end().endswith(b"0\r\n\r\n")


def test_each_request_counts_in_requests_per_time_alone(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    """Once, in those of all gateways, also where the id is unknown or the form has a fault."""

    def used() -> dict[str, int]:
        return {row["per"]: row["used"] for row in gateways[0].get("/v1/key", key="paced").json["quotas"]}

    made = upload(gateways[0], upstream, "paced")
    assert send(gateways[1], "paced", ("file", PDF)).status == 400
    assert gateways[1].get("/v1/files?purpose=batch", key="paced").status == 200
    assert gateways[0].get("/v1/files/file-0", key="paced").status == 404
    upstream.answer_with(ok_json({"id": made, "object": "file", "deleted": True}))
    assert gateways[1].send("DELETE", f"/v1/files/{made}", key="paced").status == 200
    assert used() == {"hour": 5, "month": 0}
    hits = upstream.hits
    for refused in (
        send(gateways[0], "paced", ("purpose", "user_data"), ("file", PDF)),
        *[
            gateways[1].get(path, key="paced")
            for path in ("/v1/files", f"/v1/files/{made}", f"/v1/files/{made}/content")
        ],
        *[gateways[0].get(path, key="paced") for path in ("/v1/batches", "/v1/batches/batch_0")],
    ):
        assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
        assert refused.headers["x-ratelimit-limit-requests"] == "5"
    assert upstream.hits == hits


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ([("file", PDF)], "purpose"),
        ([("purpose", "user_data")], "file"),
        ([("purpose", "user_data"), ("file", b"")], "file"),
        ([("purpose", "user_data"), ("file", "text")], "file"),
        ([("purpose", b"user_data"), ("file", PDF)], "purpose"),
        ([("purpose", "other"), ("file", PDF)], "purpose"),
        ([("purpose", "user_data"), ("purpose", "vision"), ("file", PDF)], "purpose"),
        ([("Purpose", "user_data"), ("file", PDF)], "Purpose"),
        ([("purpose", "user_data"), ("expires_after[seconds]", "3600"), ("file", PDF)], "expires_after[anchor]"),
        (
            [("purpose", "vision"), ("expires_after[anchor]", "created_at"), ("expires_after[seconds]", "2592001"),
             ("file", PDF)],
            "expires_after[seconds]",
        ),
    ],
)  # fmt: skip
def test_a_faulty_form_is_not_sent(
    gateways: list[Gateway], upstream: ScriptedUpstream, fields: list[forms.Field], param: str
) -> None:
    before = upstream.hits
    assert send(gateways[0], "alice", *fields).refusal[:3] == (400, "invalid_request_error", param)
    assert upstream.hits == before
    assert gateways[0].post("/v1/files", {"purpose": "batch"}).refusal[3] == "unsupported_content_type"
    assert gateways[0].send("POST", "/v1/files", forms.form(*fields), key=None, headers=forms.TYPE).status == 401


def test_a_failed_upload_binds_nothing(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    fields: list[forms.Field] = [("purpose", "user_data"), ("file", PDF)]
    upstream.answer_with(error_json(400, message="Invalid file format."))
    assert send(gateways[0], "alice", *fields).error["message"] == "Invalid file format."
    for trouble in (error_json(500), ok_json({"object": "file"}), answer(b"no json"), cut_mid_body):
        upstream.answer_with(trouble)
        assert send(gateways[0], "alice", *fields).status in (502, 503)


def test_a_key_has_so_many_files_at_most(gateways: list[Gateway], upstream: ScriptedUpstream) -> None:
    for _ in range(40):
        upload(gateways[0], upstream, "carol", ("purpose", "vision"), ("file", b"x"))
    said = send(gateways[1], "carol", ("purpose", "vision"), ("file", b"x"))
    assert said.refusal == (400, "invalid_request_error", None, "too_many_files")


def test_a_gateway_without_an_upstream_for_files(
    start_gateway: StartsGateways, shared_upstream: ScriptedUpstream
) -> None:
    gateway = start_gateway(settings(shared_upstream.url))
    for said in (send(gateway, "alice", ("purpose", "vision"), ("file", b"x")), gateway.get("/v1/files")):
        assert said.status == 404
        assert "files.upstream" in said.error["message"]


def test_the_simulator_keeps_files(start_gateway: StartsGateways, process: StartsProcesses) -> None:
    address = process(SIMULATOR, "--port", "0").wait_for(r"serves (http://127\.0\.0\.1:\d+/v1)\n")[1]
    gateway = start_gateway(settings(address, files={"upstream": "main"}))
    made = send(gateway, "alice", ("purpose", "user_data"), ("file", PDF)).json
    assert (made["bytes"], made["expires_at"] - made["created_at"]) == (len(PDF), 30 * 86_400)
    assert gateway.get(f"/v1/files/{made['id']}/content").body == PDF
    assert [row["id"] for row in gateway.get("/v1/files").json["data"]] == [made["id"]]
    assert gateway.get("/v1/files", key="bob").json["data"] == []
    assert gateway.send("DELETE", f"/v1/files/{made['id']}").json["deleted"] is True
