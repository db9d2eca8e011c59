"""Files and batches with openai-python and openai-node, through a gateway in front of the simulated upstream, whose
ledger has to agree with the records."""

from __future__ import annotations

import base64
import json
from typing import Any

import openai
import pytest

from tests.conftest import StartsGateways, StartsProcesses
from tests.flows.gateway_process import CHAT, SIMULATOR, Gateway, eventually, key, model, secret, settings
from tests.flows.sdks import Call, Received, ask_node
from tests.flows.test_batches import PRICE, line, served, written

PACED = key("paced", quotas=[{"requests": 6, "per": "hour"}])


@pytest.fixture
def simulator(process: StartsProcesses) -> str:
    return process(SIMULATOR, "--port", "0").wait_for(r"serves (http://127\.0\.0\.1:\d+/v1)\n")[1]


@pytest.fixture
def gateway(start_gateway: StartsGateways, simulator: str) -> Gateway:
    models = {CHAT: model("chat", price=PRICE)}
    return start_gateway(
        settings(simulator, models=models, keys=[key("alice"), key("bob"), PACED], files={"upstream": "main"})
    )


def sdk(gateway: Gateway, who: str = "alice") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=secret(who), max_retries=0)


def test_files(gateway: Gateway) -> None:
    mine, other = sdk(gateway).files, sdk(gateway, "bob").files
    names = [mine.create(file=(f"{at}.txt", b"text %d" % at), purpose="user_data").id for at in range(3)]
    assert [file.id for file in mine.list(limit=1)] == names[::-1]
    assert mine.retrieve(names[0]).filename == "0.txt"
    assert mine.content(names[1]).read() == b"text 1"
    with mine.with_streaming_response.content(names[2]) as stream:
        assert stream.read() == b"text 2"
    assert list(other.list()) == []
    for ask in (other.retrieve, other.content, other.delete):
        with pytest.raises(openai.NotFoundError):
            ask(names[0])
    assert mine.delete(names[0]).deleted
    with pytest.raises(openai.NotFoundError):
        mine.retrieve(names[0])


def test_a_batch(gateway: Gateway, simulator: str) -> None:
    client, other = sdk(gateway), sdk(gateway, "bob")
    lines = [line(str(number)) for number in range(20)]
    file = client.files.create(file=("input.jsonl", written(*lines)), purpose="batch")
    began = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"takes_s": "1"}
    )
    assert began.status == "in_progress"
    done = eventually(lambda: (seen := client.batches.retrieve(began.id)).status == "completed" and seen)
    assert done.output_file_id is not None
    answers = [json.loads(each) for each in client.files.content(done.output_file_id).iter_lines()]
    assert [each["custom_id"] for each in answers] == [each["custom_id"] for each in lines]
    assert [batch.id for batch in client.batches.list()] == [began.id]
    with pytest.raises(openai.NotFoundError):
        other.files.content(done.output_file_id)
    with pytest.raises(openai.NotFoundError):
        other.batches.cancel(began.id)
    with pytest.raises(openai.BadRequestError) as refused:
        client.files.create(file=("input.jsonl", written(line("a", stream=True))), purpose="batch")
    assert refused.value.code == "invalid_batch_line"
    (record,) = eventually(lambda: gateway.calls("alice"), timeout_s=60)
    calls = served(simulator, began.id)
    usage = [each["response"]["body"]["usage"] for each in answers]
    for name in ("prompt_tokens", "completion_tokens"):
        assert record[name] == sum(call[name] for call in calls) == sum(each[name] for each in usage)


def test_requests_per_time(gateway: Gateway) -> None:
    """Each of six requests counts, and the SDK knows the refusal of the seventh."""
    client = sdk(gateway, "paced")
    file = client.files.create(file=("input.jsonl", written(line("a"))), purpose="batch")
    began = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"takes_s": "600"}
    )
    assert [batch.id for batch in client.batches.list()] == [began.id]
    assert client.batches.retrieve(began.id).status == "in_progress"
    assert client.files.content(file.id).read() == written(line("a"))
    assert client.batches.cancel(began.id).status == "cancelled"
    for ask in (client.batches.retrieve, client.batches.cancel, client.files.retrieve, client.files.delete):
        with pytest.raises(openai.RateLimitError) as refused:
            ask(began.id)
        assert (refused.value.code, refused.value.type) == ("rate_limit_exceeded", "requests")
        assert float(refused.value.response.headers["retry-after"]) > 0


def node(gateway: Gateway, *calls: Call, who: str = "alice") -> list[Received]:
    return ask_node(f"{gateway.url}/v1", secret(who), calls)


def data_of(received: Received) -> Any:
    assert "error" not in received, received
    return received["data"]


def node_upload(data: bytes, purpose: str) -> Call:
    return Call("files", {"purpose": purpose}, files={"file": [base64.b64encode(data).decode()]})


def test_files_with_node(gateway: Gateway) -> None:
    made = [
        data_of(each)["id"] for each in node(gateway, *[node_upload(b"text %d" % at, "user_data") for at in range(3)])
    ]
    names = [Call("files", method=method, id=made[0]) for method in ("retrieve", "content", "delete", "retrieve")]
    of_others = node(gateway, *names[:3], Call("files", method="list"), who="bob")
    assert [each["error"]["name"] for each in of_others[:3]] == ["NotFoundError"] * 3
    assert data_of(of_others[3]) == []
    paged = Call("files", {"limit": 1}, method="list")
    listed, shown, content, deleted, gone = node(gateway, paged, *names)
    assert [file["id"] for file in data_of(listed)] == made[::-1]  # a page for each
    assert (data_of(shown)["id"], data_of(content), data_of(deleted)["deleted"]) == (made[0], "text 0", True)
    assert (gone["error"]["status"], gone["error"]["param"]) == (404, "id")
    (refused,) = node(gateway, Call("uploads", {"purpose": "batch", "filename": "a", "bytes": 9, "mime_type": "x"}))
    assert (refused["error"]["name"], refused["error"]["status"]) == ("NotFoundError", 404)
    assert "send the whole file with POST /v1/files" in refused["error"]["message"]


def test_a_batch_with_node(gateway: Gateway, simulator: str) -> None:
    (uploaded,) = node(gateway, node_upload(written(*[line(str(number)) for number in range(5)]), "batch"))
    asked = {
        "input_file_id": data_of(uploaded)["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h",
    }  # fmt: skip
    began, long = node(gateway, Call("batches", asked), Call("batches", asked | {"metadata": {"takes_s": "600"}}))
    made, other = data_of(began)["id"], data_of(long)["id"]
    eventually(lambda: gateway.get(f"/v1/batches/{made}").json["status"] == "completed")
    shown, listed, cancelled = node(
        gateway, Call("batches", method="retrieve", id=made), Call("batches", {"limit": 1}, method="list"),
        Call("batches", method="cancel", id=other),
    )  # fmt: skip
    assert [batch["id"] for batch in data_of(listed)] == [other, made]
    assert data_of(cancelled)["status"] == "cancelled"
    (content,) = node(gateway, Call("files", method="content", id=data_of(shown)["output_file_id"]))
    answers = [json.loads(each) for each in data_of(content).splitlines()]
    assert [each["custom_id"] for each in answers] == [str(number) for number in range(5)]
    record = gateway.call(began["request_id"])
    usage = [each["response"]["body"]["usage"] for each in answers]
    for name in ("prompt_tokens", "completion_tokens"):
        assert record[name] == sum(call[name] for call in served(simulator, made)) == sum(each[name] for each in usage)
    assert gateway.call(long["request_id"])["status"] == 499
    (refused,) = node(gateway, node_upload(written(line("a", stream=True)), "batch"))
    assert (refused["error"]["name"], refused["error"]["code"]) == ("BadRequestError", "invalid_batch_line")
