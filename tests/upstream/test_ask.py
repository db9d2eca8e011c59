"""The names in an upstream's answer to GET /models."""

from __future__ import annotations

import pytest

from gateway.upstream.ask import Reply, model_names


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (b'{"data": [{"id": "b"}, {"id": "a"}, {"id": "a"}]}', ["a", "b"]),
        (b'{"data": []}', []),
        (b'{"models": []}', None),
        (b'{"data": [1]}', None),
        (b'{"data": 1}', None),
        (b"[]", None),
        (b"<html>", None),
        (b"[" * 100_000, None),
    ],
    ids=range(8),
)
def test_names(body: bytes, names: list[str] | None) -> None:
    assert model_names(Reply(200, body)) == names
    assert model_names(Reply(401, body)) is None
