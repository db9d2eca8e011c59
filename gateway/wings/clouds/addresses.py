"""The paths and bodies of clouds that differ from OpenAI's and Anthropic's own. Pure.

- Azure's deployments: the path has the model, and the query has an `api-version` (openai-python, lib/azure.py).
- Claude at Vertex AI: the model and whether it streams are in the path; the body has `anthropic_version` and no `model`
  (anthropic-sdk-python, lib/vertex/_client.py; Google, "Request predictions with Claude models").
- Claude at Bedrock by InvokeModel: as at Vertex AI, the body has no `stream` either, and the header `anthropic-beta` is
  a list in it (anthropic-sdk-python, lib/bedrock/_client.py; AWS, "Anthropic Claude Messages API").
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple
from urllib.parse import quote, urlencode

from .betas import left_out

OF_DEPLOYMENTS = (
    "/completions", "/chat/completions", "/embeddings", "/audio/transcriptions", "/audio/translations",
    "/audio/speech", "/images/generations", "/images/edits",
)  # fmt: skip
VERTEX_VERSION, BEDROCK_VERSION = "vertex-2023-10-16", "bedrock-2023-05-31"

_TOKEN = re.compile(rb'[^"{}\[\],:]*+("(?:[^"\\]++|\\.)*+"|[{}\[\],:])', re.DOTALL)
_FORM_MODEL = re.compile(rb'name="?model"?\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]+)\r\n')


class Addressed(NamedTuple):
    """A request in the form of the cloud."""

    path: str
    body: bytes


class Member(NamedTuple):
    """One member of a JSON object: where it and its value are in the text."""

    name: str
    start: int
    value: int
    end: int


def members(body: bytes) -> Iterator[Member]:
    """The members of a JSON object that is known to be valid."""
    depth, name, start, value = 0, "", 0, 0
    for token in _TOKEN.finditer(body):
        sign, at = token[1], token.start(1)
        if sign in b"{[":
            depth += 1
        elif depth == 1 and sign == b":":
            value = token.end()
        elif depth == 1 and sign in b",}":
            if value:
                yield Member(name, start, value, at)
            value = 0
        elif depth == 1 and not value:
            name, start = json.loads(sign), at
        if sign in b"}]":
            depth -= 1


def rewritten(body: bytes, without: Iterable[str], added: Mapping[str, object]) -> tuple[dict[str, bytes], bytes]:
    """The values of the members `without`, and the body without them. `added` comes first, in the place of what the
    client may have for another cloud; every other byte stays as it was."""
    found = list(members(body))
    left_out = {*without, *added}
    taken = {each.name: body[each.value : each.end].strip() for each in found if each.name in left_out}
    kept = [body[each.start : each.end].strip() for each in found if each.name not in left_out]
    new = [json.dumps({name: value})[1:-1].encode() for name, value in added.items()]
    return taken, b"{" + b",".join([*new, *kept]) + b"}"


def _model(taken: Mapping[str, bytes]) -> str:
    """The model's name as in a path. Names with `;` or of dots would be read as other paths there."""
    name = json.loads(taken.get("model", b'""'))
    return quote(name, safe=":@") if isinstance(name, str) and name.strip(".") else "-"


def azure(path: str, body: bytes, header: Callable[[str], str], version: str) -> Addressed:
    """The path below a deployment, or the same path, with the version."""
    path, _, query = path.partition("?")
    query = "&".join([each for each in (query, urlencode({"api-version": version})) if each])
    if path not in OF_DEPLOYMENTS:
        return Addressed(f"{path}?{query}", body)
    if body.startswith(b"--"):
        found = _FORM_MODEL.search(body)
        model = quote(found[1].decode("utf-8", "replace"), safe="") if found else "-"
    else:
        model = next((_model({"model": body[each.value : each.end]}) for each in members(body) if each.name == "model"),
                     "-")  # fmt: skip
    return Addressed(f"/deployments/{model}{path}?{query}", body)


def vertex(path: str, body: bytes, header: Callable[[str], str], version: str) -> Addressed:
    """Claude's methods at Vertex AI."""
    path = path.partition("?")[0]
    added = {"anthropic_version": VERTEX_VERSION}
    betas = header("anthropic-beta").split(",")
    if path == "/messages/count_tokens":
        return Addressed("/models/count-tokens:rawPredict", rewritten(body, left_out(betas), added)[1])
    if path != "/messages":
        return Addressed(path, body)
    taken, rest = rewritten(body, ("model", *left_out(betas)), added)
    streams = any(each.name == "stream" and body[each.value : each.end].strip() == b"true" for each in members(body))
    return Addressed(f"/models/{_model(taken)}:{'streamRawPredict' if streams else 'rawPredict'}", rest)


def bedrock(path: str, body: bytes, header: Callable[[str], str], version: str) -> Addressed:
    """Claude's methods at Bedrock. The name of a model may be an ARN, or that of an inference profile."""
    if path.partition("?")[0] != "/messages":
        return Addressed(path, body)
    added: dict[str, object] = {"anthropic_version": BEDROCK_VERSION}
    if betas := [each.strip() for each in header("anthropic-beta").split(",") if each.strip()]:
        added["anthropic_beta"] = betas
    taken, rest = rewritten(body, ("model", "stream", *left_out(betas)), added)
    method = "invoke-with-response-stream" if taken.get("stream") == b"true" else "invoke"
    return Addressed(f"/model/{_model(taken)}/{method}", rest)


ADDRESS: Mapping[str, Callable[[str, bytes, Callable[[str], str], str], Addressed]] = {
    "azure": azure, "vertex": vertex, "bedrock": bedrock,
}  # fmt: skip
"""The function for each `paths`: it takes the path below `base_url`, the body, a header by its name, the version."""
