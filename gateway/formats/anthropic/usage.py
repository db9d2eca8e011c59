"""Usage reports of Anthropic's Messages API.

1. `input_tokens` does not include the cache: the prompt is `input_tokens + cache_creation_input_tokens +
   cache_read_input_tokens`. Writes that last an hour are `cache_creation.ephemeral_1h_input_tokens`, the other writes
   last 5 minutes. `output_tokens` includes thinking.
2. The reports of a stream are cumulative, and each count replaces its own (anthropic-sdk, `accumulate_event`). Input
   counts of a report with `input_tokens` are one set, because Kimi's first report counts the cache in `input_tokens`
   and its last does not (maximhq/bifrost#5510); zeros alone replace none. A count that is left out or null is as
   before, and so is the part that lasts an hour, which only the first report names.
3. `iterations` lists the runs of models inside one call. Compactions are not in the counts at the top (anthropic-sdk,
   BetaUsage), so each count is the sum over the list, if that is more. Each run is then a part of the usage, with the
   `model` that it names, because each has the price of its model and of its own length.
4. With `fallback_credit` a retry was billed less than its counts; by how much is unknown: the usage is an estimate.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gateway import units
from gateway.config.rates import variant_of
from gateway.records import Usage

TEXT = re.compile(rb'"(?:text|thinking|partial_json|name)"\s*:\s*"((?:[^"\\]++|\\.)++)"')
"""Generated texts in an answer or an event that are not empty: its one group."""

_INPUT = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_OTHER_MODELS = frozenset({"advisor_message", "fallback_message"})
"""Iterations of a model of their own."""
UNNAMED_MODEL = "?"
"""The model of a part whose iteration has one of its own and does not name it."""


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
    searches = _detail(report.get("server_tool_use"), "web_search_requests")
    usage = _usage(top, searches, _service(report))
    if report.get("fallback_credit"):
        usage = usage._replace(source="estimated")
    return usage if len(runs) < 2 else _with_parts(usage, runs, searches)


def _usage(counted: _Counts, searches: int, service: str) -> Usage:
    more: units.Counts = ()
    if counted.written or searches:
        more = units.counts(
            {
                "cache_write": counted.written - counted.written_1h,
                "cache_write_1h": counted.written_1h,
                "web_searches": searches,
            }
        )
    return Usage(counted.prompt, counted.output, counted.read, counted.thinking, "reported", more, service)


def _with_parts(usage: Usage, runs: Sequence[Mapping[str, Any]], searches: int) -> Usage:
    """The usage with its runs as parts. Runs that are not all of it have no price of their own: where another model ran
    among them, the usage is an estimate."""
    parts = [_usage(_counts(run), 0, usage.variant)._replace(model=_model(run)) for run in runs]
    if searches:
        parts.append(Usage(source="reported", more=units.counts({"web_searches": searches}), variant=usage.variant))
    whole = [sum(counts) for counts in zip(*[part[:2] for part in parts], strict=True)]
    if whole == list(usage[:2]):
        return usage._replace(parts=tuple(parts))
    return usage._replace(source="estimated") if any(part.model for part in parts) else usage


def _model(run: Mapping[str, Any]) -> str:
    """The model that ran, where it is not certainly the call's."""
    model = run.get("model")
    if isinstance(model, str) and model:
        return model
    return UNNAMED_MODEL if run.get("type") in _OTHER_MODELS else ""


def _service(report: Mapping[str, Any]) -> str:
    """The billed service that the answer names: of `speed`, `service_tier` and `inference_geo`."""
    tier = "fast" if report.get("speed") == "fast" else report.get("service_tier")
    return variant_of(tier if isinstance(tier, str) else "", report.get("inference_geo"))


def merged(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Two reports of one stream as one, the later one second."""
    given = {name: value for name, value in now.items() if value is not None}
    has_input = any(_count(given.get(name)) for name in _INPUT)
    known = dict(before)
    for name, value in given.items():
        if name in _INPUT and name in before and not (has_input if "input_tokens" in given else _count(value)):
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


class MessagesUsage:
    """Follows the reports of one answer."""

    def __init__(self) -> None:
        self._report: Mapping[str, Any] = {}
        """The reports so far, merged."""

    def take(self, value: Mapping[str, Any]) -> Usage | None:
        """Take a message or an event; return the usage so far if this is a report of it."""
        message = value.get("message") if value.get("type") == "message_start" else value
        report = message.get("usage") if isinstance(message, dict) else None
        if not isinstance(report, dict):
            return None
        self._report = merged(self._report, report)
        return reported(self._report)
