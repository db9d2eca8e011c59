"""A path that is served is what its client meant."""

from __future__ import annotations

import pytest

from gateway.formats import FORMATS
from gateway.web import unknown_paths
from gateway.web.openapi.document import OPERATIONS

SERVED = {path for _, path in OPERATIONS} | {
    path for spec in FORMATS.values() for path in (spec.path, *spec.more_paths)
}


@pytest.mark.parametrize("path", sorted(SERVED))
def test_a_served_path_means_itself(path: str) -> None:
    """`/v1/messages/batches` is no `/v1/batches` behind the address of `/v1/messages`."""
    assert unknown_paths.meant(path) == path


def test_an_endpoint_behind_an_endpoint_is_what_was_meant() -> None:
    assert unknown_paths.meant("/v1/chat/completions/chat/completions") == "/v1/chat/completions"
    assert unknown_paths.meant("/v1/messages/v1/messages") == "/v1/messages"
