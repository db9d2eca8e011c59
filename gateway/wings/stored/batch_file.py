"""The input file of a batch: each of its requests is checked when it is uploaded, as a call of its own would be, and
written as the upstream needs it.

A file has requests of one model and one endpoint, as OpenAI has it (platform.openai.com, "Batch API"). The most that
the batch can cost is the sum over the lines; it is kept in the bond of the file, and reserved when the batch is made.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple, NoReturn, ParamSpec, TypeVar

from gateway.api import auth, capabilities, json_document, validate
from gateway.api.capabilities import Adaptation
from gateway.api.file_ids import named_files
from gateway.api.form import PIECE_BYTES, UploadedFile
from gateway.api.large_body import LARGE_BYTES
from gateway.chunked import Turns
from gateway.config import Route
from gateway.errors import GatewayError, InvalidRequest, ModelNotFound
from gateway.formats import bridges
from gateway.formats.format import VARIANT, Format
from gateway.pipeline import Services
from gateway.pipeline.request import changed_members
from gateway.quota import windows
from gateway.records import Call, Key, LineCeilings, Params
from gateway.relay.charge import SentRequest
from gateway.web.forms import StoredForm

from .batch_results import LINE_BYTES
from .formats import LINE_FORMATS

P = ParamSpec("P")
T = TypeVar("T")

MAX_LINES = 50_000
"""The maximum number of requests in one of OpenAI's batches."""

MAX_LINE_BYTES = 1_048_576
"""The maximum size of one request, which is parsed in one step."""

MAX_NESTED = 32_768
"""The maximum number of objects and lists in one request: a step in C that builds more holds up other calls, also in a
thread."""

MAX_ALL_LINES = 2 * MAX_LINES
"""The maximum number of lines, blank ones included."""

_LINE_NAMES = frozenset({"custom_id", "method", "url", "body"})


class BatchSums(NamedTuple):
    """The common properties of a file's requests, and the sums of what they may use."""

    url: str
    model: str
    """The model name that the client uses."""
    lines: int
    prompt_tokens: int
    output_tokens: int


class BatchInput(NamedTuple):
    """The facts that the gateway keeps of the input of a batch."""

    sums: BatchSums
    ceilings: LineCeilings

    def as_note(self) -> dict[str, Any]:
        """Members of the note of the file's bond. A gateway that does not know one of them leaves it out."""
        return {"batch": self.sums, "ceilings": self.ceilings}


def input_of(note: str) -> BatchInput | None:
    """The input of a batch in the note of a file's bond; None: the file is no input of a batch."""
    noted = json.loads(note)
    if (sums := noted.get("batch")) is None:
        return None
    return BatchInput(BatchSums(*sums), LineCeilings(*noted.get("ceilings", ())))


async def of_batch_file(asked: Params, key: Key, services: Services) -> Params:
    """The parameters of a batch, with the sums over its input file. Raises `NotFound` or `InvalidRequest`."""
    bond = await services.bonds.require(key.in_team, asked.refers_to or "", "input_file_id", services.config.upstreams)
    noted = input_of(bond.note)
    if noted is None:
        raise InvalidRequest(
            "Invalid 'input_file_id': the file was not uploaded with the purpose 'batch'.", param="input_file_id"
        )
    sums = noted.sums
    spec = LINE_FORMATS[sums.url]
    if spec.name != asked.lines_endpoint:
        raise InvalidRequest(
            f"Invalid 'endpoint': the requests of the file are for '{sums.url}'.", param="endpoint",
            code="mismatched_endpoint",
        )  # fmt: skip
    return asked._replace(
        model=sums.model, prompt_tokens=sums.prompt_tokens, output_limit=sums.output_tokens, lines=sums.lines,
        line_ceilings=noted.ceilings,
    )  # fmt: skip


class BatchChecker:
    """Checks the lines of one file for a key, and writes them into `written`. `upstream` runs the batch."""

    def __init__(self, key: Key, services: Services, upstream: str, written: StoredForm) -> None:
        self._key = key
        self._services = services
        self._upstream = upstream
        self._written = written
        self._ids: set[bytes] = set()
        """Digests of the `custom_id` of each line."""
        self._number = 0
        self._model = ""
        self._spec: Format | None = None
        self._prompt_tokens = 0
        self._output_tokens = 0
        self._ceilings = LineCeilings()
        self._began = services.clock.now()
        self._is_counted = any(term.unit in ("tokens", "usd") for term in services.key_cache.terms.of(key))

    async def check(self, file: UploadedFile) -> BatchInput:
        """The facts of a file. Raises `InvalidRequest` or `ModelNotFound` for the first fault, with its line."""
        turns = Turns(LINE_BYTES)
        async for line in _lines(file):
            self._number += 1
            if turns.is_over(len(line)):
                await asyncio.sleep(0)
            try:
                if self._number > MAX_ALL_LINES:
                    _refuse(f"a file has at most {MAX_ALL_LINES} lines. Leave the blank ones out.")
                if not line.strip():
                    continue
                changed = await self._line(line)
            except GatewayError as fault:
                fault.message = f"Line {self._number} of the file: {fault.message}"
                fault.param = "file"
                raise
            await self._written.add(changed + b"\n")
        if self._spec is None:
            raise InvalidRequest("Invalid 'file': it has no requests.", param="file", code="empty_file")
        await self._written.end()
        sums = BatchSums(self._spec.path, self._model, len(self._ids), self._prompt_tokens, self._output_tokens)
        return BatchInput(sums, self._ceilings)

    async def _line(self, data: bytes) -> bytes:
        if b"\r" in data:  # where some readers end a line
            _refuse("a carriage return is inside the line. End lines with a line feed, or with both.")
        if json_document.has_more_nested(data, MAX_NESTED):
            _refuse(f"a request of a batch has at most {MAX_NESTED} objects and lists.")
        document = await _at_leisure(len(data), json_document.parse, data)
        validate.refuse_other_case(document.members, _LINE_NAMES)
        spec = self._head(document.members)
        start, end = (await _at_leisure(len(data), json_document.spans, document))["body"]
        asked = document.text[start:end].encode()
        call, route = await self._call(spec, asked)
        self._ceilings = self._ceilings.plus(*(await _at_leisure(len(data), _ceilings, call, route, asked)))
        self._prompt_tokens += call.params.prompt_tokens
        self._output_tokens += windows.output_limit(call) * call.params.candidates
        changes = changed_members(call, (), route, self._services.config.upstreams[route.upstream].capabilities)
        if not changes:
            return data
        body = await _at_leisure(len(data), json_document.replace, call.params.document, changes)
        return document.text[:start].encode() + body + document.text[end:].encode()

    def _head(self, members: dict[str, Any]) -> Format:
        """The format of a line. Raises `InvalidRequest`."""
        name = members.get("custom_id")
        if not isinstance(name, str) or not 1 <= len(name) <= 512:
            _refuse("'custom_id' has to be text of 1 to 512 characters.")
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if digest in self._ids:
            _refuse("'custom_id' is that of another line.")
        self._ids.add(digest)
        if len(self._ids) > MAX_LINES:
            _refuse(f"a batch has at most {MAX_LINES} requests.")
        if members.get("method") != "POST":
            _refuse("'method' has to be 'POST'.")
        spec = LINE_FORMATS.get(str(members.get("url")))
        if spec is None:
            _refuse(f"'url' has to be one of: {', '.join(LINE_FORMATS)}.")
        if self._spec is not None and spec is not self._spec:
            _refuse(f"'url' has to be that of the first line, '{self._spec.path}'.")
        if not isinstance(members.get("body"), dict):
            _refuse("'body' has to be an object.")
        self._spec = spec
        return spec

    async def _call(self, spec: Format, body: bytes) -> tuple[Call, Route]:
        config, key = self._services.config, self._key
        asked = await _at_leisure(len(body), spec.read, body, self._services.find_counter)
        _refuse_connected(asked)
        for file_id in await _at_leisure(len(body), named_files, asked.document):
            await self._services.bonds.require(key.in_team, file_id, "file_id", config.upstreams)
        if self._model and asked.model != self._model:
            _refuse(f"'model' has to be that of the first line, '{self._model[:64]}': a batch has one model.")
        found = config.model_table.find(asked.model)
        if found is None or not auth.may_use(key, asked.model, found.name):
            raise ModelNotFound(asked.model)
        model = found.model
        if not capabilities.lists(model, spec.name):
            raise capabilities.wrong_endpoint(spec.name, model.endpoints)
        self._model = asked.model
        params = validate.restrict(asked, key.limits, model.limits)
        if params.output_limit is None and params.default_output is None:
            if (most := model.max_output_tokens) is None and self._is_counted:
                _refuse(f"your key has a quota, so set '{params.output_param}'.")
            # Also where the key has no quota: the upstream may have one, and another key may make the batch.
            params = params._replace(output_limit=most, is_output_limit_added=most is not None)
        call = Call(
            id="", started=self._began, key=key, endpoint=spec.name, params=params._replace(variant=VARIANT),
            model=model, label_model="", arrived=0.0, target=None if found.alias is None else found.name,
        )  # fmt: skip
        return call, self._route(call)

    def _route(self, call: Call) -> Route:
        """The route to the upstream that runs batches. Raises `InvalidRequest`."""
        upstreams = self._services.config.upstreams
        for route in capabilities.fitting(call.model, call.endpoint, call.params, upstreams, bridges.refusal):
            able = upstreams[route.upstream].capabilities
            way = capabilities.adaptation(call.endpoint, call.params, able)
            if route.upstream == self._upstream and way is Adaptation.PLAIN:
                return route
        raise InvalidRequest("this model is not served by the provider that runs batches.", code="invalid_batch_line")


async def _at_leisure(size: int, read: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """The result of reading `size` bytes, by a thread where it takes long."""
    return read(*given, **named) if size <= LARGE_BYTES else await asyncio.to_thread(read, *given, **named)


def _ceilings(call: Call, route: Route, body: bytes) -> tuple[int, int]:
    """The most tokens of the prompt and of the output of one request."""
    sent = SentRequest(call, route.model, call.params.output_limit, pieces=(body,))
    return sent.prompt_ceiling(), sent.output_ceiling(0, reasons=sent.may_reason)


def _refuse_connected(asked: Params) -> None:
    """Refuse what needs a connection, or something that is bound to one account."""
    if asked.stream:
        _refuse("'stream' is not possible in a batch.")
    if asked.is_deferred:
        _refuse("'background' is not possible in a batch.")
    if asked.refers_to is not None:
        _refuse(f"'{asked.refers_param}' is not supported in a batch. Send the whole conversation.")
    if asked.items:
        _refuse(
            f"'{asked.items[0].param}' is kept by a provider, which is not supported in a batch. Send the item itself."
        )
    if asked.other_models:
        _refuse("a request in a batch names one model.")


def _refuse(what: str) -> NoReturn:
    raise InvalidRequest(what, code="invalid_batch_line")


async def _lines(file: UploadedFile) -> AsyncIterator[bytes]:
    held, at = b"", len(BOM_UTF8) if file.read(0, len(BOM_UTF8)) == BOM_UTF8 else 0
    while piece := file.read(at, PIECE_BYTES):
        at += len(piece)
        *lines, held = (held + piece).split(b"\n")
        for line in lines:
            yield _bounded(line)
        _bounded(held)
    yield _bounded(held)


def _bounded(line: bytes) -> bytes:
    if len(line) > MAX_LINE_BYTES:
        raise InvalidRequest(
            f"A request of a batch has at most {MAX_LINE_BYTES} bytes.", param="file", code="invalid_batch_line"
        )
    return line.removesuffix(b"\r")
