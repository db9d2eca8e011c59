"""Calls that go to their upstream in another form than the client's. Wings bring the bridges.

A large body that has to change as a whole on the way up, for a bridge or because models are named inside lists, is
rewritten by the process of large bodies (`made`): that takes seconds for 25 MB, which would block the worker's other
calls. The worker asks for what its routes may need (`needed`) and takes the result (`taken`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from gateway.api import json_document
from gateway.api.capabilities import Adaptation, adaptation, wrong_endpoint
from gateway.api.large_body import Piece
from gateway.config import Capabilities, Model, Upstream
from gateway.errors import GatewayError
from gateway.records import Call, Document, Endpoint, LargeBody, Params, Rewriting
from gateway.wings import parts

from .format import Format
from .table import FORMATS


class Adapted(NamedTuple):
    """A call in the form of its upstream."""

    call: Call
    format: Format | None = None
    """The upstream's format, with answers for the client of this call; None: that of `call`."""
    left_out: tuple[str, ...] = ()
    """Features of the request that are not sent to the upstream."""


class Bridge(NamedTuple):
    """Adapts calls in one way."""

    way: Adaptation
    adapt: Callable[[Call, Capabilities, int], Adapted]
    """Adapts a call for an upstream; the number bounds a streamed answer in bytes."""
    kind: str
    """The kind of its rewritings; bridges that have the same rewritings share it."""
    make: Callable[[Endpoint, Mapping[str, Any], str], tuple[dict[str, Any], bytes]]
    """Makes what `made` returns of the members of a body and the detail of a rewriting."""
    take: Callable[[Mapping[str, Any], Sequence[Piece]], Any]
    detail: Callable[[Capabilities], str] = lambda capabilities: ""
    refusal: Callable[[Endpoint, Params, Capabilities], GatewayError | None] = lambda endpoint, params, able: None
    """Why a call cannot be adapted; None: it can be. Asked before `adapt`."""


@cache
def by_way() -> Mapping[Adaptation, Bridge]:
    return {each.way: each for each in parts(Bridge, "bridges")}


def refusal(way: Adaptation, endpoint: Endpoint, params: Params, capabilities: Capabilities) -> GatewayError | None:
    """Why a call cannot go this way to an upstream with these capabilities; None: it can."""
    bridge = by_way().get(way)
    return wrong_endpoint(endpoint, ()) if bridge is None else bridge.refusal(endpoint, params, capabilities)


def needed(
    endpoint: Endpoint, asked: Params, models: Iterable[Model], upstreams: Mapping[str, Upstream]
) -> list[Rewriting]:
    """The rewritings of a large body that routes of these models may need, each once."""
    found: list[Rewriting] = []
    spec = FORMATS[endpoint]
    for route in [route for model in models for route in model.routes]:
        able = upstreams[route.upstream].capabilities
        way = adaptation(endpoint, asked, able)
        if way is not Adaptation.PLAIN:
            if bridge := by_way().get(way):
                found.append(Rewriting(bridge.kind, bridge.detail(able)))
        elif spec.rename is not None:
            name = route.model or asked.model
            if spec.has_model_in_path or name != asked.model:
                found.append(Rewriting("renamed", name))
    return list(dict.fromkeys(found))


def made(endpoint: Endpoint, rewriting: Rewriting, raw: bytes) -> tuple[dict[str, Any], bytes]:
    """The facts for `taken`, and the body as it goes up. Raises `InvalidRequest`."""
    document = json_document.parse(raw)
    for bridge in by_way().values():
        if bridge.kind == rewriting.kind:
            return bridge.make(endpoint, document.members, rewriting.detail)
    rename = FORMATS[endpoint].rename
    assert rename is not None
    return {}, json_document.replace(document, rename(document.members, rewriting.detail))


def taken(rewriting: Rewriting, known: Mapping[str, Any], pieces: Sequence[Piece]) -> Any:
    """A value of `LargeBody.rewritten`, with the body in these pieces."""
    for bridge in by_way().values():
        if bridge.kind == rewriting.kind:
            return bridge.take(known, pieces)
    return Document("", {}, LargeBody(pieces, 0, {}))


def renamed(large: LargeBody, model: str) -> LargeBody:
    """The body with this name of the model in each place inside it."""
    found = large.rewritten.get(Rewriting("renamed", model))
    return large if found is None else found.large
