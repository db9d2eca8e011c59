"""A path that is served is what its client meant."""

from __future__ import annotations

import pytest

from gateway.formats.table import FORMATS
from gateway.web import middleware
from gateway.web.openapi.document import OPERATIONS

SERVED = {path for _, path in OPERATIONS} | {
    path for spec in FORMATS.values() for path in (spec.path, *spec.more_paths)
}


@pytest.mark.parametrize("path", sorted(SERVED))
def test_a_served_path_means_itself(path: str) -> None:
    """`/v1/messages/batches` is no `/v1/batches` behind the address of `/v1/messages`."""
    assert middleware.meant(path) == path


def test_an_endpoint_behind_an_endpoint_is_what_was_meant() -> None:
    assert middleware.meant("/v1/chat/completions/chat/completions") == "/v1/chat/completions"
    assert middleware.meant("/v1/messages/v1/messages") == "/v1/messages"


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("/v1/chat/completion", "Did you mean /v1/chat/completions?"),
        ("/v1/embedding", "Did you mean /v1/embeddings?"),
        ("/health", "Did you mean /healthz?"),
        ("/api/v1/chat/completions", "Did you mean /v1/chat/completions? Leave /api out of the base URL."),
        ("/v1/foo", None),
        ("/status", None),
    ],
)
def test_the_error_of_a_nearly_right_path_names_the_right_one(path: str, advice: str | None) -> None:
    assert middleware.advice_on(path) == advice
