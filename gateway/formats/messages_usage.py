"""Usage reports of Anthropic's Messages API.

1. `input_tokens` does not include the cache: the prompt is `input_tokens + cache_creation_input_tokens +
   cache_read_input_tokens`. Writes that last an hour are `cache_creation.ephemeral_1h_input_tokens`, the other writes
   last 5 minutes. `output_tokens` includes thinking.
2. The reports of a stream are cumulative. Input counts are one set, from the last report that has `input_tokens`,
   because Kimi's first report counts the cache in `input_tokens` and its last does not (maximhq/bifrost#5510); a set of
   zeros replaces none. A count that is left out or null is as before, and so is the part that lasts an hour, which only
   the first report names.
3. `iterations` lists the runs of models inside one call. Compactions are not in the counts at the top (anthropic-sdk,
   BetaUsage), so each count is the sum over the list, if that is more. A run of another model than the answer's has
   another price, which one record of usage cannot say: the usage is then marked as an estimate.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from gateway import units
from gateway.records import Usage, UsageSource

TEXT = re.compile(rb'"(?:text|thinking|partial_json|name)"\s*:\s*"((?:[^"\\]++|\\.)++)"')
"""Generated texts in an answer or an event that are not empty: its one group."""

_INPUT = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_OTHER_MODELS = frozenset({"advisor_message", "fallback_message"})
"""Iterations of a model of their own."""


class _Counts(NamedTuple):
    fresh: int
    written: int
    written_1h: int
    read: int
    output: int
    thinking: int

    @property
    def prompt(self) -> int:
        return self.fresh + self.written + self.read


def reported(report: Any) -> Usage | None:
    """The usage object of an answer, or what `merged` made of those of a stream; None if it cannot be read."""
    if not isinstance(report, dict):
        return None
    if _count(report.get("input_tokens")) is None and _count(report.get("output_tokens")) is None:
        return None
    top = _counts(report)
    iterations = report.get("iterations")
    runs = [run for run in iterations if isinstance(run, dict)] if isinstance(iterations, list) else []
    if runs:
        summed = _Counts(*map(sum, zip(*map(_counts, runs), strict=True)))
        output, thinking = max(summed.output, top.output), max(summed.thinking, top.thinking)
        top = (summed if summed.prompt > top.prompt else top)._replace(output=output, thinking=thinking)
    is_priced_alike = not any(run.get("type") in _OTHER_MODELS for run in runs)
    searches = _detail(report.get("server_tool_use"), "web_search_requests")
    more: units.Counts = ()
    if top.written or searches:
        more = units.counts(
            {
                "cache_write": top.written - top.written_1h,
                "cache_write_1h": top.written_1h,
                "web_searches": searches,
            }
        )
    source: UsageSource = "reported" if is_priced_alike else "estimated"
    return Usage(top.prompt, top.output, top.read, top.thinking, source, more, _service(report))


def _service(report: Mapping[str, Any]) -> str:
    """What the answer calls the service that is billed: `speed` has prices of its own, and so has `service_tier`."""
    tier = "fast" if report.get("speed") == "fast" else report.get("service_tier")
    return tier if isinstance(tier, str) else ""


def merged(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """What two reports of one stream say together, the later one second."""
    given = {name: value for name, value in now.items() if value is not None}
    has_input = any(_count(given.get(name)) for name in _INPUT)
    known = dict(before)
    for name, value in given.items():
        if name in _INPUT and (not has_input or "input_tokens" not in given) and name in before:
            continue
        is_sum = name == "output_tokens"
        known[name] = max(_count(value) or 0, _count(before.get(name)) or 0) if is_sum else value
    return known


def _counts(report: Mapping[str, Any]) -> _Counts:
    split = report.get("cache_creation")
    longer = _detail(split, "ephemeral_1h_input_tokens")
    written = _count(report.get("cache_creation_input_tokens"))
    if written is None:
        written = longer + _detail(split, "ephemeral_5m_input_tokens")
    return _Counts(
        _count(report.get("input_tokens")) or 0,
        written,
        min(longer, written),
        _count(report.get("cache_read_input_tokens")) or 0,
        _count(report.get("output_tokens")) or 0,
        _detail(report.get("output_tokens_details"), "thinking_tokens"),
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def _detail(details: Any, name: str) -> int:
    return (_count(details.get(name)) or 0) if isinstance(details, dict) else 0
