"""Errors on Vertex AI's paths are those of the publisher's API, whatever is wrong."""

from __future__ import annotations

import pytest

from tests.web.conftest import AUTH, Inside

NOWHERE = "http://127.0.0.1:9/v1"
PROJECT = "/v1/projects/p/locations/global"


@pytest.mark.parametrize(
    ("method", "path", "status", "keys"),
    [
        ("DELETE", f"{PROJECT}/publishers/anthropic/models/m:rawPredict", 405, {"type", "message"}),
        ("GET", f"{PROJECT}/publishers/anthropic/models/m:streamRawPredict", 405, {"type", "message"}),
        ("POST", f"{PROJECT}/publishers/anthropic/models/m:predict", 404, {"type", "message"}),
        ("PUT", f"{PROJECT}/publishers/google/models/m:generateContent", 405, {"code", "message", "status"}),
        ("POST", "/v1beta1/publishers/google/models/m:predict", 404, {"code", "message", "status"}),
        ("POST", f"{PROJECT}/publishers/meta/models/m:predict", 404, {"message", "type", "param", "code"}),
        ("POST", f"{PROJECT}/reasoningEngines/1:query", 404, {"message", "type", "param", "code"}),
    ],
)
async def test_errors_are_in_the_words_of_the_publisher(
    inside: Inside, method: str, path: str, status: int, keys: set[str]
) -> None:
    client = await inside(NOWHERE)
    answer = await client.request(method, path, headers=AUTH)
    assert (answer.status, set((await answer.json())["error"]) - {"details"}) == (status, keys)
