"""Reads responses of OpenAI's Responses API, whole and streamed: their tokens, and the use of their hosted tools.

Sources: openai-python 3.54.0, `types/responses/response_usage.py` and `response.py`. `tool_usage` is a member beside
`usage`; it may be missing or incomplete. Searches and containers are counted in `output` where it does not have them.

A container makes the usage an estimate: OpenAI bills it by minute and memory since June 2026, which no answer reports,
several answers may use one container, and one that was made and not used is in no answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from gateway import units
from gateway.formats import member_reader
from gateway.formats.member_reader import EACH
from gateway.formats.reader import AnswerReader, objects, text_of, value_at, values_of
from gateway.formats.reported_usage import count
from gateway.records import Usage

from .reader import reported

RESPONSE_TEXT = re.compile(
    rb'"(?:(?:text|refusal|arguments|input|code|diff)"\s*:\s*"|commands?"\s*:\s*\[\s*")((?:[^"\\]++|\\.)++)"'
)
"""Generated texts in a plain response of the Responses API: the one group. Of a shell's commands the first."""

_NAMES = {
    "input_tokens": "prompt_tokens", "input_tokens_details": "prompt_tokens_details",
    "output_tokens": "completion_tokens", "output_tokens_details": "completion_tokens_details",
}  # fmt: skip
"""The names in a chat's usage, which some clones write themselves."""
_COUNTS_TOOLS = ("server_side_tool_usage_details", "tool_calls_details", "x_tools")
"""Members of a usage object that count the tools that ran: of xAI, Perplexity and DashScope. Of others the output
counts, too."""


def usage_of(response: Mapping[str, Any]) -> Usage | None:
    """The usage of a whole response; None if it has no usage object that can be read, and used no tools."""
    given, tier = response.get("usage"), response.get("service_tier")
    report = given if isinstance(given, dict) else {}
    usage = reported({_NAMES.get(name, name): report[name] for name in report}, tier, response.get("provider"))
    is_counted = any(report.get(name) for name in _COUNTS_TOOLS)
    tools, is_estimate = ({}, False) if is_counted else _tools(response)
    if not tools:
        return usage
    if usage is None:
        return Usage(source="estimated", more=units.counts(tools))
    more = units.highest(usage.more, units.counts(tools))
    return usage._replace(more=more, source="estimated" if is_estimate else usage.source)


def _tools(response: Mapping[str, Any]) -> tuple[dict[str, int], bool]:
    """Units of the hosted tools, and whether some are not what the upstream bills."""
    kinds, containers = _items_of(objects(response.get("output")))
    found = {"file_searches": kinds.get("file_search_call", 0), "tool_calls": kinds.get("x_search_call", 0)}
    found["containers"] = len(containers) or int(kinds.get("code_interpreter_call", 0) > 0)
    is_estimate = found["containers"] > 0
    for name, item, instead, members in _REPORTED:
        counts = {unit: count(value_at(response.get("tool_usage"), (name, member))) for member, unit in members.items()}
        if None in counts.values():
            shown = kinds.get(item, 0)
            is_estimate = is_estimate or shown > 0
            counts = {instead: shown}
        found.update({unit: amount for unit, amount in counts.items() if amount})
    return {name: amount for name, amount in found.items() if amount}, is_estimate


_REPORTED: tuple[tuple[str, str, str, Mapping[str, str]], ...] = (
    ("web_search", "web_search_call", "web_searches", {"num_requests": "web_searches"}),
    (
        "image_gen", "image_generation_call", "images",
        {"input_tokens": "image_tool_in", "output_tokens": "image_tool_out"},
    ),
)  # fmt: skip
"""Member of `tool_usage`; the type of its items in `output`, and their unit, which counts where the member lacks a
count; its counts, with their units."""

_FREE_ACTIONS = frozenset({"open_page", "find_in_page"})
"""Actions of a web search that are not billed (openai-python, response_function_web_search.py)."""


def _items_of(output: Collection[Mapping[str, Any]]) -> tuple[dict[str, int], set[str]]:
    """How many items of each type an output has, and the containers that they name. Of web searches only those that are
    billed: a page that was opened is none (OpenAI's guide on web search), nor is a search that failed."""
    kinds: dict[str, int] = {}
    containers: set[str] = set()
    for item in output:
        kind, done = str(item.get("type")), text_of(value_at(item, ("action", "type")))
        kind = "web_search_call" if kind == "openrouter:web_search" else kind  # OpenRouter's own tool
        if kind == "web_search_call" and (item.get("status") == "failed" or done in _FREE_ACTIONS):
            continue
        kinds[kind] = kinds.get(kind, 0) + 1
        environment = item.get("environment")
        for place in (item, environment if isinstance(environment, dict) else {}):
            if isinstance(place.get("container_id"), str):
                containers.add(place["container_id"])
    return kinds, containers


GOOD_ENDS = frozenset({"response.completed", "response.incomplete", "response.done"})
"""The last one is of backends of Codex and of relays (oh-my-pi#4692, 9router#2142)."""
BAD_ENDS = frozenset({"response.failed", "error"})
ENDS = GOOD_ENDS | BAD_ENDS
ITEM_BEGINS = frozenset({"response.output_item.added"})
ITEM_ENDS = frozenset({"response.output_item.done"})
"""Events with an item of the output, whole."""
HEADS = frozenset({"response.created", "response.in_progress", "response.queued"})
"""Events that carry the whole response before any output."""

_REQUEST_FAULTS = re.compile(
    r"context_length_exceeded|(?:invalid|unsupported|empty)_.*|image_.*|.*_policy(?:_violation)?"
)
"""Codes of a failed response that blame the request (openai-openapi, ResponseErrorCode). They come without a type."""

MAX_ITEMS = 100
"""Items of one answer that are bound to its key, at most."""

_RESPONSE = (
    "id", "model", "created_at", "store", "background", "status", "service_tier", "provider", "error", "usage",
    "tool_usage",
)  # fmt: skip
_ITEM = (
    ("type",), ("id",), ("status",), ("action", "type"), ("container_id",), ("environment", "container_id"),
)  # fmt: skip
MAX_TEXT = 512
"""Characters of a fact of an item."""
WANTED = (
    ("type",), ("success",), *[(name,) for name in _RESPONSE],
    ("output", EACH), *[("output", EACH, *path) for path in _ITEM],
)  # fmt: skip
"""The members of a whole response with facts."""


class ResponsesReader(AnswerReader):
    """Collects the id, items, texts and end state of one response."""

    WANTED = (
        ("type",), ("sequence_number",), ("error",), ("code",), ("message",), ("output_index",),
        *[("response", name) for name in _RESPONSE], *[("response", "output", EACH, *path) for path in _ITEM],
        *[("item", *path) for path in _ITEM],
    )  # fmt: skip

    def __init__(self) -> None:
        self.id: str | None = None
        self.created_at: Any = None
        self.is_stored = True
        """Whether the upstream keeps it under its id; True where the stream does not state it."""
        self.items: tuple[str, ...] = ()
        """The ids of the items of its output, when it has ended."""
        self._output: list[dict[str, Any]] = []
        """The members with facts, of each item that has ended."""
        self._begun: dict[Any, dict[str, Any]] = {}
        """The same of those that have not, by their places: a tool may have run, and is billed."""
        self.has_ended = False
        """Whether an event that ends a response has come, well or not."""
        self.is_good = False

    def named(self) -> Usage:
        output = [*self._output, *self._begun.values()]
        return self._named._replace(more=units.counts(_tools({"output": output})[0]))

    def facts(self, value: Mapping[str, Any]) -> Usage | None:
        kind, given, item = value.get("type"), value.get("response"), value.get("item")
        response: dict[str, Any] = given if isinstance(given, dict) else {}
        if isinstance(item, dict) and len(self._output) + len(self._begun) < member_reader.MAX_ITEMS:
            place = place if isinstance(place := value.get("output_index"), int) else None
            if kind in ITEM_BEGINS:
                self._begun[place] = _facts_of(item)
            elif kind in ITEM_ENDS:
                self._begun.pop(place, None)
                self._output.append(_facts_of(item))
        if kind in HEADS or kind in ENDS:
            self._head(response)
        if kind not in ENDS:
            if kind is None and value.get("error"):
                self._fail(value["error"])
            return usage_of(response) if response.get("usage") else None
        self.has_ended = kind != "error"
        usage = None
        if kind != "error":
            # ChatGPT's backend, vLLM and relays end without the output (litellm#32724, vllm#30223, new-api#4362).
            items = objects(response.get("output")) or self._output
            self.items, usage = ids_of(items), usage_of({**response, "output": items})
            self.texts = [text for item in items for text in texts_of(item)]
        if kind in GOOD_ENDS and response.get("status") != "failed":
            self.is_good = True
        else:
            error = (value if kind == "error" else response).get("error")
            self._fail(error or (dict(value) if kind == "error" else {}))
        return usage

    def _head(self, response: Mapping[str, Any]) -> None:
        if isinstance(response.get("id"), str):
            self.id = response["id"]
        if isinstance(response.get("model"), str):
            self.model = response["model"]
        if (tier := text_of(response.get("service_tier"))) and tier != "auto":  # not chosen yet
            self._named = self._named._replace(variant=tier)
        if response:
            is_stored = response.get("store") is not False or response.get("background") is True
            self.is_stored = self.is_stored and is_stored
        self.created_at = response.get("created_at", self.created_at)

    def _fail(self, error: Any) -> None:
        self.error = error_of_failure(error if isinstance(error, dict) else {"message": error} if error else {})


def error_of_failure(error: Mapping[str, Any]) -> dict[str, Any]:
    """The error of a failed response as an error object, with a type where its code blames the request."""
    found = {name: error[name] for name in ("message", "type", "param", "code") if error.get(name) is not None}
    if found.get("type") in (None, "error"):
        found.pop("type", None)
        if _REQUEST_FAULTS.fullmatch(str(found.get("code"))):
            found["type"] = "invalid_request_error"
    return found or {"message": "the response failed without an error"}


def ids_of(output: Collection[Mapping[str, Any]]) -> tuple[str, ...]:
    """The ids of items, at most `MAX_ITEMS`."""
    return tuple([item["id"] for item in output if isinstance(item.get("id"), str) and item["id"]][:MAX_ITEMS])


def _facts_of(item: Mapping[str, Any]) -> dict[str, Any]:
    """The members with facts, without long texts and all else that may be in them."""
    found: dict[str, Any] = {}
    for *above, name in _ITEM:
        value = value_at(item, (*above, name))
        if isinstance(value, str) and len(value) <= MAX_TEXT:
            (found.setdefault(above[0], {}) if above else found)[name] = value
    return found


def texts_of(item: Mapping[str, Any]) -> list[bytes]:
    """Generated texts of an item of the output, as in JSON: also what it lets a tool do."""
    texts = [
        part.get("text") or part.get("refusal") for name in ("content", "summary") for part in objects(item.get(name))
    ]
    texts += [item.get(name) for name in ("arguments", "input", "code")]
    texts += [text for name in ("arguments", "action", "operation") for text in _inside(item.get(name))]
    return [json.dumps(text).encode()[1:-1] for text in texts if isinstance(text, str) and text]


def _inside(given: Any) -> Iterable[str]:
    return values_of(given) if isinstance(given, dict) else ()
