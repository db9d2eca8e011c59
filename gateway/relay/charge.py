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

from typing import Any, NamedTuple

from gateway.quota import windows
from gateway.records import Call, Usage

from . import reasoning_models, reported_usage, token_rule
from .stream_scan import StreamScan


class SentRequest(NamedTuple):
    """What the upstream was asked for."""

    call: Call
    routed_model: str | None = None
    """As the upstream knows it, where that differs."""
    output_limit: int | None = None
    """Tokens of each candidate, as it stands in the forwarded body; None: it has no limit."""
    count_texts: token_rule.CountsTexts = token_rule.count


class _Delivered(NamedTuple):
    """What is known of an answer that was not (well) reported."""

    tokens: int = 0
    events: int = 0
    report: Usage | None = None
    has_reasoned: bool = False
    is_whole: bool = False
    model: str | None = None


def of_stream(sent: SentRequest, scan: StreamScan) -> Usage:
    """Of a streamed answer, however far it came."""
    report = scan.usage
    if report is not None and scan.is_usage_final and _is_plausible(sent.call, report, has_text=scan.has_text):
        return _with_prompt(sent.call, report)
    if scan.error is not None and not scan.has_begun:
        return Usage()
    is_whole = scan.is_complete and scan.error is None
    return _estimate(
        sent,
        _Delivered(scan.delivered_tokens(), scan.text_events(), report, scan.has_reasoned, is_whole, scan.model),
    )


def of_plain(sent: SentRequest, reported: Any, body: bytes, model: str | None) -> Usage:
    """Of a whole plain answer; `reported` is its `usage`."""
    report = reported_usage.reported(reported)
    if report is not None and report.completion_tokens:
        return _with_prompt(sent.call, report)
    texts = reported_usage.texts_of(body)
    if report is not None and _is_plausible(sent.call, report, has_text=bool(texts)):
        return _with_prompt(sent.call, report)
    tokens = token_rule.tokens_of(sum([sent.count_texts(text + b'"').quarters for text in texts]))
    return _estimate(sent, _Delivered(tokens, bool(texts), report, reported_usage.has_reasoning(body), True, model))


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
    call, report = sent.call, delivered.report or Usage()
    completion = max(delivered.tokens, delivered.events)
    if sent.output_limit is not None:
        most = sent.output_limit * call.params.candidates
        if delivered.events <= most or _is_echo(call):
            completion = min(completion, most)
    names = (call.params.model, sent.routed_model, delivered.model)
    if reasoning_models.may_be_hidden(call, names, has_reasoned=delivered.has_reasoned, is_whole=delivered.is_whole):
        completion = max(completion, windows.output_limit(call) * call.params.candidates)
    return Usage(
        report.prompt_tokens or call.params.prompt_tokens,
        max(completion, report.completion_tokens),
        report.cached_tokens,
        report.reasoning_tokens,
        "estimated",
    )
