"""Paths and bodies as clouds want them. slow/test_beside_sdks.py holds them against the vendors' SDKs."""

from __future__ import annotations

import json
import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api import large_body
from gateway.records import LargeBody
from gateway.wings.clouds import addresses
from gateway.wings.clouds.addresses import ADDRESS, members, rewritten

BODY = b'{"model": "m", "max_tokens": 5,"stream":true , "messages":[{"role":"user","content":"\\"model\\": {"}]}'


def addressed(kind: str, path: str, body: bytes, **headers: str) -> tuple[str, bytes]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return ADDRESS[kind](path, body, lambda name: named.get(name, ""), "2024-10-21", None)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["model", "stream", "a", '"', "\\", "é"]), JSON), st.booleans(), st.booleans())
def test_members_are_found_where_they_are(value: dict[str, Any], is_ascii: bool, is_spaced: bool) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii, indent=2 if is_spaced else None).encode("utf-8", "surrogatepass")
    found = {each.name: json.loads(text[each.value : each.end]) for each in members(text)}
    assert found == value
    places = {each.name: (each.value, each.end) for each in members(text)}
    assert rewritten(text, ("model",), {"x": 1}, places) == rewritten(text, ("model",), {"x": 1})
    taken, rest = rewritten(text, ("model", "stream"), {"anthropic_version": "v"})
    left = {name: each for name, each in value.items() if name not in ("model", "stream")}
    assert json.loads(rest) == {"anthropic_version": "v", **left}
    assert taken.keys() == value.keys() & {"model", "stream"}


@pytest.mark.parametrize("kind", ["azure", "vertex", "bedrock"])
def test_the_lists_of_a_body_are_passed_over(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sign by sign, 64 KiB of them held up other calls for 200 ms, and 5 MiB for five seconds."""
    steps = list[str]()
    text = json.dumps({"messages": [[{"a": '"]'}, "x"]] * 5_000, "stream": True, "model": "m"}).encode()

    def note(_frame: FrameType, event: str, function: Any) -> None:
        steps.append(event)

    sys.setprofile(note)
    try:
        path, rest = addressed(kind, "/chat/completions" if kind == "azure" else "/messages", text)
    finally:
        sys.setprofile(None)
    assert path.startswith(("/deployments/m/", "/model/m/", "/models/m:streamRawPredict"))
    assert json.loads(rest)["messages"] == json.loads(text)["messages"]
    assert len(steps) < 5_000


def test_the_members_of_a_large_body_are_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    body = [b'{ "model" :"m", ', b'"messages" : [1, 2],"max_tokens": 5}']
    whole = b"".join(body)
    places = {each.name: (each.value, each.end) for each in members(whole)}
    changes = {"max_tokens": 70, "model": "other", "new": {"a": 1}, "é": None}
    replaced = large_body.replace(LargeBody(body, 1, places), changes)
    sent = b"".join(replaced)
    assert json.loads(sent) == {"messages": [1, 2], **changes}
    assert {name: json.loads(sent[start:end]) for name, (start, end) in replaced.places.items()} == json.loads(sent)
    expected = ADDRESS["bedrock"]("/messages", sent, lambda _: "", "", None)
    monkeypatch.setattr(addresses, "_NAME", None)
    assert ADDRESS["bedrock"]("/messages", sent, lambda _: "", "", replaced.places) == expected


def test_every_other_byte_stays_the_clients_own() -> None:
    assert addressed("bedrock", "/messages?beta=true", BODY) == (
        "/model/m/invoke-with-response-stream",
        b'{"anthropic_version": "bedrock-2023-05-31","max_tokens": 5,' + BODY[BODY.index(b'"messages"') :],
    )


def test_a_version_for_another_cloud_is_replaced() -> None:
    _, body = addressed("vertex", "/messages", b'{"model": "m", "anthropic_version": "bedrock-2023-05-31"}')
    assert json.loads(body) == {"anthropic_version": "vertex-2023-10-16"}


@pytest.mark.parametrize("name", ["", "..", 5, None])
def test_a_name_that_would_be_another_path_is_none(name: Any) -> None:
    path, _ = addressed("bedrock", "/messages", json.dumps({"model": name}).encode())
    assert path == "/model/-/invoke"


def test_a_form_of_azure_names_its_deployment() -> None:
    form = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nmodel\r\n--x\r\n'
    form += b'Content-Disposition: form-data; name="model"\r\n\r\nwhisper 1\r\n--x--\r\n'
    path, body = addressed("azure", "/audio/transcriptions", form)
    assert (path, body) == ("/deployments/whisper%201/audio/transcriptions?api-version=2024-10-21", form)


def test_other_paths_of_azure_have_the_version_alone() -> None:
    assert addressed("azure", "/responses", b"{}")[0] == "/responses?api-version=2024-10-21"
    assert addressed("azure", "/files?limit=1", b"")[0] == "/files?limit=1&api-version=2024-10-21"
