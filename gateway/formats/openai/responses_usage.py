"""The usage of a response of OpenAI's Responses API: its tokens, and the use of its hosted tools.

Sources: openai-python 3.54.0, `types/responses/response_usage.py` and `response.py`. `tool_usage` is a member beside
`usage`; it may be missing or incomplete. Searches and containers are counted in `output` where it does not have them.

A container makes the usage an estimate: OpenAI bills it by minute and memory since June 2026, which no answer reports,
several answers may use one container, and one that was made and not used is in no answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from gateway import units
from gateway.formats.reader import objects
from gateway.formats.reported_usage import count, detail, more_of
from gateway.records import Usage

from .usage import own_counts, reported

Items = Mapping[str, int]
"""How many items of each type the `output` has."""


class Used(NamedTuple):
    """The members of a response that report its usage."""

    usage: Any = None
    tool_usage: Any = None
    service_tier: Any = None
    items: Items = MappingProxyType({})
    containers: Collection[str] = ()
    """Ids of the containers that the items name."""


def usage_of(used: Used) -> Usage | None:
    """The usage of a response; None if it has no usage object that can be read, and used no tools."""
    report = used.usage if isinstance(used.usage, dict) else {}
    of_input, of_output = report.get("input_tokens_details"), report.get("output_tokens_details")
    prompt, completion = count(report.get("input_tokens")), count(report.get("output_tokens"))
    own = {} if _PLAIN.issuperset(report) else own_counts(report)
    usage: Usage | None
    if prompt is None and completion is None:
        usage = reported(report, used.service_tier)  # some clones write a chat's usage
    else:
        usage = Usage(
            prompt or 0,
            completion or 0,
            detail(of_input, "cached_tokens") or own.get("cached", 0),
            detail(of_output, "reasoning_tokens") or own.get("reasoning", 0),
            "reported",
            more_of(of_input, of_output),
            used.service_tier if isinstance(used.service_tier, str) else "",
        )
    tools, is_estimate = _tools(used, report, own)
    if not tools:
        return usage
    if usage is None:
        return Usage(source="estimated", more=units.counts(tools))
    return usage._replace(
        more=units.total((usage.more, units.counts(tools))), source="estimated" if is_estimate else usage.source
    )


def _tools(used: Used, report: Mapping[str, Any], own: Mapping[str, int]) -> tuple[dict[str, int], bool]:
    """Units of the hosted tools, and whether some are not what the upstream bills."""
    if not _COUNTS_TOOLS.isdisjoint(report):
        return {name: own[name] for name in own if name in units.UNITS}, False
    tools = used.tool_usage if isinstance(used.tool_usage, dict) else {}
    found = {"file_searches": used.items.get("file_search_call", 0)}
    found["containers"] = len(used.containers) or int(used.items.get("code_interpreter_call", 0) > 0)
    is_estimate = found["containers"] > 0
    for name, item, read in _REPORTED:
        amounts = read(tools.get(name))
        if amounts is None:
            shown = used.items.get(item, 0)
            is_estimate = is_estimate or shown > 0
            amounts = {_INSTEAD[name]: shown}
        found.update(amounts)
    return {name: amount for name, amount in found.items() if amount}, is_estimate


_PLAIN = frozenset({"input_tokens", "output_tokens", "total_tokens", "input_tokens_details", "output_tokens_details"})
_COUNTS_TOOLS = frozenset({"server_side_tool_usage_details", "tool_calls_details", "num_sources_used"})
"""Members of a usage object that count the tools that ran: of xAI and Perplexity."""


def _web_search(tools: Any) -> dict[str, int] | None:
    number = count(tools.get("num_requests")) if isinstance(tools, dict) else None
    return None if number is None else {"web_searches": number}


def _image_generation(tools: Any) -> dict[str, int] | None:
    if not isinstance(tools, dict):
        return None
    taken, made = count(tools.get("input_tokens")), count(tools.get("output_tokens"))
    if taken is None or made is None:
        return None
    return {"image_tool_in": taken, "image_tool_out": made}


# Member of `tool_usage`, the type of its items in `output`, and how it is read: None if it reports nothing.
_REPORTED: tuple[tuple[str, str, Callable[[Any], dict[str, int] | None]], ...] = (
    ("web_search", "web_search_call", _web_search),
    ("image_gen", "image_generation_call", _image_generation),
)
_INSTEAD = {"web_search": "web_searches", "image_gen": "images"}
"""The unit that is counted in `output` where `tool_usage` does not have it."""


class ResponsesUsage:
    """Follows the reports of one response."""

    def take(self, response: Mapping[str, Any]) -> Usage | None:
        """Take a whole response; return its usage if it reports it."""
        items = items_of(objects(response.get("output")))
        return usage_of(Used(response.get("usage"), response.get("tool_usage"), response.get("service_tier"), *items))


_FREE_ACTIONS = frozenset({"open_page", "find_in_page"})
"""Of a web search (openai-python, response_function_web_search.py)."""


def items_of(output: Collection[Mapping[str, Any]]) -> tuple[dict[str, int], set[str]]:
    """How many items of each type an output has, and the containers that they name. Of web searches only those that are
    billed: a page that was opened is none (OpenAI's guide on web search), nor is a search that failed."""
    kinds: dict[str, int] = {}
    containers: set[str] = set()
    for item in output:
        kind, action = str(item.get("type")), item.get("action")
        done = action.get("type") if isinstance(action, dict) else None
        if kind == "web_search_call" and (item.get("status") == "failed" or done in _FREE_ACTIONS):
            continue
        kinds[kind] = kinds.get(kind, 0) + 1
        environment = item.get("environment")
        for place in (item, environment if isinstance(environment, dict) else {}):
            if isinstance(place.get("container_id"), str):
                containers.add(place["container_id"])
    return kinds, containers
