"""Batches of OpenAI's API before the simulator: each request checked at the upload, reserved when the batch is made,
charged once by its results, however workers and gateways end."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import StartsGateways
from tests.fakes import forms

from .background import records
from .client import Answer
from .gateway_process import CHAT, SIMULATOR, Gateway, Process, eventually, key, model, settings

PRICE = {"input": 2, "output": 8, "variants": {"batch": {"input": 1, "output": 4}}}
CALLS = "/v1/chat/completions"


@pytest.fixture(scope="module")
def simulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    process = Process(tmp_path_factory.mktemp("simulator"), SIMULATOR, "--port", "0")
    try:
        yield process.wait_for(r"serves (http://127\.0\.0\.1:\d+/v1)\n")[1]
    finally:
        process.end()


def config(simulator: str, store_url: str, **store: Any) -> dict[str, Any]:
    return settings(
        simulator,
        upstreams={"other": {"base_url": simulator}},
        models={
            CHAT: model("chat", price=PRICE),
            "plain": model("chat", price={"input": 2, "output": 8}, routes=[{"upstream": "main", "model": CHAT}]),
            "elsewhere": model("chat", "other"),
            "text-embedding-3-small": model("embeddings"),
        },
        aliases={"fast": CHAT},
        keys=[
            key("alice", quotas=[{"tokens": 10**6, "per": "day"}, {"usd": 100, "per": "month"}]),
            key("bob", models=["plain", CHAT]),
            key("carol", quotas=[{"tokens": 500, "per": "day"}]),
            key("dave", models=["plain"], limits={"max_tokens": 50}),
        ],
        files={"upstream": "main"},
        server={"workers": 2, "access_log": "json"},
        store={"url": store_url, **store},
    )  # fmt: skip


@pytest.fixture(scope="module")
def gateway(start_shared_gateway: StartsGateways, simulator: str, store_url: str) -> Gateway:
    return start_shared_gateway(config(simulator, store_url))


def line(name: str, which: str = CHAT, **members: Any) -> dict[str, Any]:
    body = {"model": which, "messages": [{"role": "user", "content": f"Hello {name}"}], "max_tokens": 40} | members
    return {"custom_id": name, "method": "POST", "url": CALLS, "body": body}


def written(*lines: Any) -> bytes:
    return b"".join([each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n" for each in lines])


def upload(gateway: Gateway, *lines: Any, who: str = "alice") -> Answer:
    form = forms.form(("purpose", "batch"), ("file", written(*lines)))
    return gateway.send("POST", "/v1/files", form, key=who, headers=forms.TYPE)


def create(gateway: Gateway, file_id: str, who: str = "alice", **members: Any) -> Answer:
    asked = {"input_file_id": file_id, "endpoint": CALLS, "completion_window": "24h"} | members
    return gateway.post("/v1/batches", asked, key=who)


def made(gateway: Gateway, *lines: Any, who: str = "alice", **members: Any) -> Answer:
    file_id = upload(gateway, *lines, who=who).json["id"]
    answer = create(gateway, file_id, who, **members)
    assert answer.status == 200, answer
    return answer


def served(simulator: str, *batches: str) -> list[dict[str, Any]]:
    """The calls of these batches that the simulator has answered."""
    with urllib.request.urlopen(f"{simulator.removesuffix('/v1')}/simulator/ledger") as answer:
        calls: list[dict[str, Any]] = json.load(answer)["calls"]
    return [call for call in calls if call["ended"] == "done" and call["id"].partition(":")[0] in batches]


def settled(gateway: Gateway, answer: Answer) -> dict[str, Any]:
    eventually(lambda: records(gateway, answer.id), timeout_s=60)
    (record,) = records(gateway, answer.id)
    return record


def windows(gateway: Gateway, who: str = "alice") -> tuple[int, int]:
    rows = gateway.get("/v1/key", key=who).json["quotas"]
    (row,) = [row for row in rows if row["unit"] == "tokens"]
    return row["used"], row["reserved"]


def test_a_batch_is_charged_once_by_its_lines(gateway: Gateway, simulator: str) -> None:
    lines = [line(f"line-{number}") for number in range(5)]
    before, none = windows(gateway)
    assert none == 0
    began = made(gateway, *lines, line("bad", simulate={"status": 500}), metadata={"takes_s": "1.5"})
    assert windows(gateway)[1] > 6 * 40
    record = settled(gateway, began)
    calls = served(simulator, began.json["id"])
    assert len(calls) == 5
    tokens = [sum(call[kind] for call in calls) for kind in ("prompt_tokens", "completion_tokens")]
    assert [record["prompt_tokens"], record["completion_tokens"]] == tokens
    assert record["usage_source"] == "reported"
    assert record["cost_usd"] == pytest.approx((tokens[0] + 4 * tokens[1]) / 1e6, abs=2e-9)
    assert (record["endpoint"], record["model"], record["status"]) == ("batches", CHAT, 200)
    assert windows(gateway) == (before + sum(tokens), 0)
    seen = gateway.get(f"/v1/batches/{began.json['id']}").json
    assert seen["status"] == "completed"
    for name, count in (("output_file_id", 5), ("error_file_id", 1)):
        content = f"/v1/files/{seen[name]}/content"
        assert len(gateway.get(content).body.splitlines()) == count
        assert gateway.get(content, key="bob").status == 404
    assert gateway.send("DELETE", f"/v1/files/{seen['output_file_id']}").json["deleted"] is True


def test_ids_belong_to_the_key(gateway: Gateway) -> None:
    file_id = upload(gateway, line("a")).json["id"]
    assert create(gateway, file_id, "bob").refusal == (404, "invalid_request_error", "input_file_id", None)
    batch = create(gateway, file_id).json["id"]
    for said in (
        gateway.get(f"/v1/batches/{batch}", key="bob"),
        gateway.post(f"/v1/batches/{batch}/cancel", b"", key="bob"),
    ):
        assert said.refusal == (404, "invalid_request_error", None, None)
        assert said.error["message"] == f"No batch found with id '{batch}'."
    listed = gateway.get("/v1/batches?limit=1").json
    assert [row["id"] for row in listed["data"]] == [batch]
    assert gateway.get("/v1/batches", key="bob").json == {"object": "list", "data": [], "has_more": False}
    assert gateway.get(f"/v1/files/{batch}").status == 404  # it is no file


def test_models_are_mapped_and_limits_written_in_the_file(gateway: Gateway) -> None:
    spaced = json.dumps(line("a", "plain", max_tokens=None), indent=None, separators=(" , ", " : ")).encode() + b"\r\n"
    file_id = upload(gateway, spaced, b"\n", line("b", "plain"), who="dave").json["id"]
    kept = [json.loads(each) for each in gateway.get(f"/v1/files/{file_id}/content", key="dave").body.splitlines()]
    assert [each["body"]["model"] for each in kept] == [CHAT, CHAT]
    assert [each["body"].get("max_tokens") or each["body"].get("max_completion_tokens") for each in kept] == [50, 40]
    assert [each["custom_id"] for each in kept] == ["a", "b"]
    record = settled(gateway, create(gateway, file_id, "dave"))
    assert (record["model"], record["routed_model"]) == ("plain", CHAT)


def test_a_line_without_a_limit_gets_the_one_that_is_reserved_for_it(gateway: Gateway) -> None:
    """The key has no quota, and that of the upstream may be what binds."""
    file_id = upload(gateway, line("a", max_tokens=None), who="bob").json["id"]
    kept = json.loads(gateway.get(f"/v1/files/{file_id}/content", key="bob").body)
    assert kept["body"]["max_completion_tokens"] == 4096


def test_a_byte_order_mark_is_no_part_of_the_first_line(gateway: Gateway, simulator: str) -> None:
    file = upload(gateway, b"\xef\xbb\xbf", line("a"), line("b"))
    assert file.status == 200, file.body
    assert create(gateway, file.json["id"]).status == 200


def test_a_line_that_needs_no_change_keeps_its_bytes(gateway: Gateway) -> None:
    text = written(line("a", note="é"), line("b"))
    file_id = upload(gateway, text).json["id"]
    assert gateway.get(f"/v1/files/{file_id}/content").body == text


FILE = {"type": "file", "file": {"file_id": "file-0"}}
TOO_LONG = {"role": "user", "content": "x" * 1_048_576}


REFERENCE = [{"type": "item_reference", "id": "msg_1"}]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([line("a"), b"no json\n"], "Line 2 of the file"),
        ([line("a"), line("a")], "'custom_id'"),
        ([line("a") | {"custom_id": 5}], "'custom_id'"),
        ([line("a") | {"method": "GET"}], "'method'"),
        ([line("a") | {"url": "/v1/audio/speech"}], "'url'"),
        ([line("a"), line("b") | {"url": "/v1/embeddings", "body": {"model": CHAT, "input": "x"}}], "'url'"),
        ([line("a") | {"body": []}], "'body'"),
        ([line("a") | {"Body": {}}], "'Body'"),
        ([line("a"), line("b", "plain")], "a batch has one model"),
        ([line("a", "no-such-model")], "does not exist"),
        ([line("a", "elsewhere")], "not served by the provider"),
        ([line("a", "text-embedding-3-small")], "not a chat model"),
        ([line("a", stream=True)], "'stream'"),
        ([line("a", temperature=9)], "temperature"),
        ([line("a", messages=[TOO_LONG])], "1048576 bytes"),
        ([line("a", messages=[{"role": "user", "content": [FILE]}])], "No such"),
        ([line("a") | {"url": "/v1/responses", "body": {"model": CHAT, "input": REFERENCE}}], "'input[0]'"),
        ([b"\n"], "no requests"),
    ],
)  # fmt: skip
def test_a_faulty_line_is_refused_by_name(gateway: Gateway, simulator: str, lines: list[Any], words: str) -> None:
    said = upload(gateway, *lines)
    assert said.status in (400, 404)
    assert said.error["param"] == "file"
    assert words in said.error["message"]


def test_what_a_key_may_not_do_it_may_not_do_in_a_batch(gateway: Gateway) -> None:
    assert upload(gateway, line("a"), who="dave").refusal == (404, "invalid_request_error", "file", "model_not_found")
    assert "50" in upload(gateway, line("a", "plain", max_tokens=51), who="dave").error["message"]
    many = [line(str(number)) for number in range(30)]
    refused = create(gateway, upload(gateway, *many, who="carol").json["id"], "carol")
    assert (refused.status, refused.error["param"]) == (400, "input_file_id")
    file_id = upload(gateway, line("a")).json["id"]
    assert create(gateway, file_id, endpoint="/v1/embeddings").refusal[3] == "mismatched_endpoint"
    assert create(gateway, file_id, endpoint="/v1/audio/speech").status == 400
    assert create(gateway, file_id, completion_window="1h").status == 400
    other = gateway.send("POST", "/v1/files", forms.form(("purpose", "vision"), ("file", b"x")), headers=forms.TYPE)
    assert create(gateway, other.json["id"]).refusal[:3] == (400, "invalid_request_error", "input_file_id")


def test_a_cancelled_batch_is_charged_what_it_has_answered(gateway: Gateway, simulator: str) -> None:
    began = made(gateway, line("a"), metadata={"takes_s": "600"})
    assert gateway.post(f"/v1/batches/{began.json['id']}/cancel", b"").json["status"] == "cancelled"
    record = settled(gateway, began)
    assert (record["status"], record["prompt_tokens"], record["completion_tokens"]) == (499, 0, 0)
    assert served(simulator, began.json["id"]) == []


def test_an_alias_is_recorded_as_itself(gateway: Gateway) -> None:
    record = settled(gateway, made(gateway, line("a", "fast")))
    assert (record["model"], record["routed_model"]) == ("fast", CHAT)
