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
from itertools import accumulate
from typing import NamedTuple
from urllib.parse import quote, urlencode

from gateway.api.json_document import steps_of
from gateway.formats.member_reader import STRING, WHOLE_STRINGS

from .betas import left_out

OF_DEPLOYMENTS = (
    "/completions", "/chat/completions", "/embeddings", "/audio/transcriptions", "/audio/translations",
    "/audio/speech", "/images/generations", "/images/edits",
)  # fmt: skip
VERTEX_VERSION, BEDROCK_VERSION = "vertex-2023-10-16", "bedrock-2023-05-31"

_NAME = re.compile(rb'[{, \t\r\n]*+("[^"\\]*+(?:\\.[^"\\]*+)*+")[ \t\r\n]*+:[ \t\r\n]*+', re.DOTALL)
_PLAIN = re.compile(rb"[^,}\s]*+")
_BRACKET = re.compile(rb'[^"{}\[\]]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"|([{}\[\]]))', re.DOTALL)
AT_ONCE = 4096
"""Bytes of a value whose brackets are counted at once, by loops in C: a list of tokens has millions of signs."""
_FORM_MODEL = re.compile(rb'name="?model"?\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]+)\r\n')


Places = Mapping[str, tuple[int, int]] | None


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


def members(body: bytes, places: Places = None) -> Iterator[Member]:
    """The members of a JSON object that is known to be valid. `places`: the positions of their values, if these are
    known: to find those of a large body takes too long."""
    at = 0
    for name, (value, end) in sorted((places or {}).items(), key=lambda each: each[1]):
        before = body[at:value].lstrip(b"{, \t\r\n")
        yield Member(name, value - len(before), value, end)
        at = end
    while not places and (found := _NAME.match(body, at)) is not None:
        at = _end_of(body, found.end())
        yield Member(json.loads(found[1]), found.start(1), found.end(), at)


def _end_of(body: bytes, at: int) -> int:
    """The end of the value that begins here."""
    if body[at] not in b'"{[':
        found = _PLAIN.match(body, at)
    elif body[at] == ord('"'):
        found = STRING.match(body, at)
    else:
        return _end_of_brackets(body, at)
    assert found is not None
    return found.end()


def _end_of_brackets(body: bytes, at: int) -> int:
    depth = 0
    while True:
        whole = WHOLE_STRINGS.match(body, at, at + AT_ONCE)
        assert whole is not None
        if whole.end() == at:  # a long string
            at = _end_of(body, at)
            continue
        steps = steps_of(STRING.sub(b"", whole[0]))
        if depth + min(accumulate(steps), default=1) > 0:
            depth, at = depth + sum(steps), whole.end()
            continue
        for found in _BRACKET.finditer(body, at):
            depth += 0 if found[1] is None else 1 if found[1] in b"[{" else -1
            if found[1] is not None and not depth:
                return found.end()


def rewritten(
    body: bytes, without: Iterable[str], added: Mapping[str, object], places: Places = None
) -> tuple[dict[str, bytes], bytes]:
    """The values of the members `without`, and the body without them. `added` comes first, in the place of what the
    client may have for another cloud; every other byte stays as it was. `places` are those of `members`."""
    found = list(members(body, places))
    left_out = {*without, *added}
    taken = {each.name: body[each.value : each.end].strip() for each in found if each.name in left_out}
    kept = [body[each.start : each.end].strip() for each in found if each.name not in left_out]
    new = [json.dumps({name: value})[1:-1].encode() for name, value in added.items()]
    return taken, b"{" + b",".join([*new, *kept]) + b"}"


def _model(taken: Mapping[str, bytes]) -> str:
    """The model's name as in a path. Names with `;` or of dots would be read as other paths there."""
    name = json.loads(taken.get("model", b'""'))
    return quote(name, safe=":@") if isinstance(name, str) and name.strip(".") else "-"


def azure(path: str, body: bytes, header: Callable[[str], str], version: str, places: Places = None) -> Addressed:
    """The path below a deployment, or the same path, with the version."""
    path, _, query = path.partition("?")
    query = "&".join([each for each in (query, urlencode({"api-version": version})) if each])
    if path not in OF_DEPLOYMENTS:
        return Addressed(f"{path}?{query}", body)
    if body.startswith(b"--"):
        found = _FORM_MODEL.search(body)
        model = quote(found[1].decode("utf-8", "replace"), safe="") if found else "-"
    else:
        model = next((_model({"model": body[each.value : each.end]}) for each in members(body, places)
                      if each.name == "model"), "-")  # fmt: skip
    return Addressed(f"/deployments/{model}{path}?{query}", body)


def vertex(path: str, body: bytes, header: Callable[[str], str], version: str, places: Places = None) -> Addressed:
    """Claude's methods at Vertex AI."""
    path = path.partition("?")[0]
    added = {"anthropic_version": VERTEX_VERSION}
    betas = header("anthropic-beta").split(",")
    if path == "/messages/count_tokens":
        return Addressed("/models/count-tokens:rawPredict", rewritten(body, left_out(betas), added, places)[1])
    if path != "/messages":
        return Addressed(path, body)
    taken, rest = rewritten(body, ("model", *left_out(betas)), added, places)
    streams = any(
        each.name == "stream" and body[each.value : each.end].strip() == b"true" for each in members(body, places)
    )
    return Addressed(f"/models/{_model(taken)}:{'streamRawPredict' if streams else 'rawPredict'}", rest)


def bedrock(path: str, body: bytes, header: Callable[[str], str], version: str, places: Places = None) -> Addressed:
    """Claude's methods at Bedrock. The name of a model may be an ARN, or that of an inference profile."""
    if path.partition("?")[0] != "/messages":
        return Addressed(path, body)
    added: dict[str, object] = {"anthropic_version": BEDROCK_VERSION}
    if betas := [each.strip() for each in header("anthropic-beta").split(",") if each.strip()]:
        added["anthropic_beta"] = betas
    taken, rest = rewritten(body, ("model", "stream", *left_out(betas)), added, places)
    method = "invoke-with-response-stream" if taken.get("stream") == b"true" else "invoke"
    return Addressed(f"/model/{_model(taken)}/{method}", rest)


ADDRESS: Mapping[str, Callable[[str, bytes, Callable[[str], str], str, Places], Addressed]] = {
    "azure": azure, "vertex": vertex, "bedrock": bedrock,
}  # fmt: skip
"""The function for each `paths`: it takes the path below `base_url`, the body, a header by its name, the
version, and the places of the body's members as `members` does."""
