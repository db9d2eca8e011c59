"""What a call is charged: what its upstream reported, or what stands in its place, marked as an estimate.

A report counts when it is the last word (it came with the end of the answer) and is not a completion of nothing beside
text that was delivered; one that knows of no prompt is given the estimate of it. An error in place of an answer costs
nothing: so does one that comes with its status. Without such a report:

- the prompt is what was reported of it, or its estimate;
- the completion is what was delivered, by the model's tokeniser where it is at hand (the extra `tokens`), else by the
  rule of relay/token_rule.py, and at least one token for every event that brought text; but not more than the limit
  that
  the upstream was given, unless there were more events than that, which shows that it was not obeyed;
- where more may have been generated than anybody has seen (relay/reasoning_models.py), it is all that was reserved;
- it is never less than what was reported on the way. An upstream that counts as it goes has counted no more than it
  has sent, and goes on generating until it hears that nobody listens: so that is a lower bound, not the truth.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from gateway.records import Call, Usage

from . import reasoning_models, reported_usage, token_rule
from .sent_request import SentRequest
from .stream_scan import StreamScan

KINDS = ("prompt", "completion", "cached", "reasoning")
"""Kinds of tokens, in the order of the fields of a `Usage`."""


class Charge(NamedTuple):
    """What an attempt is charged."""

    usage: Usage
    doubts: tuple[str, ...] = ()
    """Counts of the upstream's report that cannot be true: kinds of tokens."""


class _Delivered(NamedTuple):
    """What is known of an answer that was not (well) reported."""

    tokens: int = 0
    events: int = 0
    report: Usage | None = None
    has_reasoned: bool = False
    is_whole: bool = False
    model: str | None = None


def of_stream(sent: SentRequest, scan: StreamScan) -> Charge:
    """Of a streamed answer, however far it came."""
    report, excess = scan.usage, scan.excess
    bounded = None if excess is None else sent.bounded(excess, scan.delivered_tokens)
    doubts = () if excess is None or bounded is None else _doubts(excess, bounded)
    if report is not None and scan.is_usage_final and _is_plausible(sent.call, report, has_text=scan.has_text):
        return _believed(sent.call, report, doubts)
    if bounded is not None and scan.is_complete:
        return _believed(sent.call, bounded, doubts)
    if scan.error is not None and not scan.has_begun:
        return Charge(Usage(), doubts)
    is_whole = scan.is_complete and scan.error is None
    delivered = _Delivered(scan.delivered_tokens(), scan.text_events(), report, scan.has_reasoned, is_whole, scan.model)
    return Charge(_estimate(sent, delivered), doubts)


def of_plain(sent: SentRequest, reported: Any, body: bytes, model: str | None) -> Charge:
    """Of a whole plain answer; `reported` is its `usage`."""
    report = reported_usage.reported(reported)
    doubts: tuple[str, ...] = ()
    if report is not None:
        bounded = sent.bounded(report, lambda: _count(sent, reported_usage.texts_of(body)))
        report, doubts = bounded, _doubts(report, bounded)
        if report.completion_tokens:
            return _believed(sent.call, report, doubts)
    texts = reported_usage.texts_of(body)
    if report is not None and _is_plausible(sent.call, report, has_text=bool(texts)):
        return _believed(sent.call, report, doubts)
    has_reasoned = reported_usage.has_reasoning(body)
    return Charge(
        _estimate(sent, _Delivered(_count(sent, texts), bool(texts), report, has_reasoned, True, model)), doubts
    )


def _count(sent: SentRequest, texts: Iterable[bytes]) -> int:
    return token_rule.tokens_of(sum([sent.count_texts(text + b'"').quarters for text in texts]))


def _believed(call: Call, report: Usage, doubts: tuple[str, ...]) -> Charge:
    """By a report that is below the ceilings and is not a completion of nothing beside text."""
    usage = reported_usage.coherent(report)
    return Charge(_with_prompt(call, usage), doubts + _doubts(report, usage))


def _doubts(report: Usage, believed: Usage) -> tuple[str, ...]:
    """The kinds of tokens of which not all are believed."""
    if report[:4] == believed[:4]:
        return ()
    return tuple([kind for kind, one, other in zip(KINDS, report[:4], believed[:4], strict=True) if one > other])


def of_nothing(sent: SentRequest) -> Usage:
    """Of a request of whose answer nothing has come."""
    return _estimate(sent, _Delivered())


def _is_plausible(call: Call, report: Usage, *, has_text: bool) -> bool:
    return report.completion_tokens > 0 or not has_text or (_is_echo(call) and report.prompt_tokens > 0)


def _with_prompt(call: Call, report: Usage) -> Usage:
    """A plausible report. What it says of the completion is believed, also where it counts no prompts."""
    is_of_something = report.completion_tokens > 0 or call.endpoint == "embeddings"
    if report.prompt_tokens or not is_of_something or not call.params.prompt_tokens:
        return report
    return report._replace(prompt_tokens=call.params.prompt_tokens, source="estimated")


def _is_echo(call: Call) -> bool:
    """Whether what is delivered begins with the prompt."""
    return bool(call.params.document.members.get("echo"))


def _estimate(sent: SentRequest, delivered: _Delivered) -> Usage:
    call, report = sent.call, reported_usage.coherent(delivered.report or Usage())
    completion = max(delivered.tokens, delivered.events)
    if sent.output_limit is not None:
        most = sent.output_limit * call.params.candidates
        if delivered.events <= most or _is_echo(call):
            completion = min(completion, most)
    names = (call.params.model, sent.routed_model, delivered.model)
    if reasoning_models.may_be_hidden(call, names, has_reasoned=delivered.has_reasoned, is_whole=delivered.is_whole):
        completion = max(completion, sent.reserved_output)
    return Usage(
        report.prompt_tokens or call.params.prompt_tokens,
        max(completion, report.completion_tokens),
        report.cached_tokens,
        report.reasoning_tokens,
        "estimated",
    )
