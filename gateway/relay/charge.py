"""The charge of one attempt of a call: the rule for every way in which an answer can end.

1. A report of the upstream counts if it came with the end of the answer, is below the ceilings (`SentRequest`)
   and does not count zero completion tokens although text was shown. The highest report counts. One without a prompt
   gets the prompt's estimate.
2. Otherwise what may have been generated is charged, marked `estimated`: the prompt; the output that was shown, at most
   the limit that was sent unless more events than that were shown; never less than a report on the way; the whole
   reservation where more may have been generated unseen, or where sound or a picture was shown (`_unseen`). Tokens of
   which only the number is known cost the dearest row that the call can use, at the service that the answer names, else
   the request.
3. `none` means that the attempt cannot have cost anything: see `Ending`.
4. Several attempts of one call are several costs: accounting/call_log.py adds them.
5. Sound and images without a report are counted in the units that have a price (`_in_priced_units`). A report of less
   sound than the bytes of the file must have does not count (`_of_possible_length`).

Shown text is counted by the model's tokeniser if it is installed (extra `tokens`), else, and in a long plain answer, by
formats/token_rule.py, at least one token for each event with text.

The ceilings bound usage reports (docs/usage.md has their figures). They are generous, so that no true report exceeds
one: upstreams count end tokens and rejected drafts, add chat templates and instructions, ignore limits, and limit only
the text behind the reasoning.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from gateway import units
from gateway.formats import reported_usage, token_rule
from gateway.formats.ceilings import OUTPUT_ALLOWANCE, PROMPT_ALLOWANCE, most_units, prompt_ceiling
from gateway.formats.format import NO_TEXT, Scan
from gateway.formats.reported_usage import PlainText
from gateway.formats.table import FORMATS
from gateway.quota import pricing, windows
from gateway.records import Call, Failure, Fault, Phase, Usage

THINKING_MODELS = (
    "o1", "o1-*", "o3", "o3-*", "o4-*", "gpt-5*", "gpt-oss*", "codex-*", "computer-use-*",
    "gpt-realtime-2", "gpt-realtime-2-*", "gpt-realtime-2.*",
    "*claude-opus-[5-9]*", "*claude-sonnet-[5-9]*", "*claude-haiku-[5-9]*", "*claude-fable-*", "*claude-mythos-*",
    "*claude-[a-z]*-latest",
    "deepseek-reasoner*", "deepseek-r1*", "qwq*", "gemini-2.5-*", "gemini-3*", "gemini-[a-z]*-latest", "grok-3-mini*",
    "grok-4*", "magistral*", "*-deep-research*", "*-thinking*", "*-reasoning*", "*-reasoner*",
)  # fmt: skip
"""Models that reason by default, by the last part of their names in lower case, without what a router adds behind a
colon. Claude does since Fable 5 and Opus 5 (platform.claude.com, "What's new in Claude Opus 5"), and omits its
thoughts; models of Google are known by aliases, too (`gemini-flash-latest`)."""
SILENT_MODELS = ("gpt-5-chat*", "gpt-5.*-chat*", "*-non-reasoning*", "*-non-thinking*")
"""Exceptions from `THINKING_MODELS`: models that do not reason by default."""


def may_be_hidden(call: Call, models: Iterable[str | None], *, has_reasoned: bool, is_whole: bool) -> bool:
    """Whether an answer may have more output than it shows.

    `models` are the names of the call's model. An answer that shows its reasoning (`has_reasoned`) may have more of it
    until it is whole.
    """
    if call.params.candidates > call.params.choices:
        return True
    if has_reasoned and FORMATS[call.endpoint].may_reason:
        return not is_whole
    return may_reason(call, models)


_OWN_SWITCHES: Sequence[tuple[tuple[str, ...], frozenset[str]]] = (
    (
        ("o[1-9]*", "gpt-*", "codex-*", "computer-use-*", "gemini-*", "grok-*"),
        frozenset({"reasoning_effort", "reasoning"}),
    ),
    (("*claude-*",), frozenset({"thinking"})),
)
"""Parameters that can switch the reasoning of a model off, where its provider has its own: relays and other APIs take
those of others and ignore them. Other models have any."""


def may_reason(call: Call, models: Iterable[str | None]) -> bool:
    """Whether a call asks for reasoning, or its model reasons by default and the call does not switch that off."""
    if not FORMATS[call.endpoint].may_reason:
        return False
    asked = _asks_to_think(call.params.document.members)
    if any(asked.values()):
        return True
    names = {name.lower().removeprefix("ft:").rpartition("/")[2] for name in models if name}
    return any(_thinks(name, asked.keys()) for name in names | {name.partition(":")[0] for name in names})


def _asks_to_think(members: Mapping[str, Any]) -> dict[str, bool]:
    """Whether a body asks for reasoning, or for none, by each provider's parameter for it that it has."""
    found: dict[str, bool] = {}
    for place in (members, members.get("extra_body"), members.get("chat_template_kwargs")):
        if not isinstance(place, Mapping):
            continue
        for name in ("reasoning_effort", "reasoning", "thinking", "enable_thinking"):
            value = place.get(name)
            if isinstance(value, dict):
                value = value.get("enabled", value.get("effort", value.get("type", bool(value))))
            if value is not None:
                known = name if place is members else "elsewhere"
                found[known] = found.get(known, False) or value not in (False, "none", "disabled")
    return found


def _thinks(name: str, switched_off: Collection[str]) -> bool:
    if not _is_among(name, THINKING_MODELS) or _is_among(name, SILENT_MODELS):
        return False
    own = next((own for patterns, own in _OWN_SWITCHES if _is_among(name, patterns)), None)
    return not switched_off if own is None else own.isdisjoint(switched_off)


def _is_among(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


KINDS = ("prompt", "completion", "cached", "reasoning")
"""Kinds of tokens, in the order of the fields of a `Usage`."""

TIMED_OUT_STATUSES = frozenset({408, 504, 524})
"""Error statuses of a proxy that stopped waiting for the answer (nginx 504, Cloudflare 524, LiteLLM 408): the server
behind it may go on generating."""

UNSEEN_TOKENS_PER_S = 200
"""The most that one candidate of a stream is taken to generate before its first event arrives."""

MAX_BROKEN_BYTES = 1_048_576
"""Bytes of a broken answer that are searched for text: more would hold up other calls."""

REASONING_ALLOWANCE = 131_072
"""The longest output of common reasoning models, rounded up: 128,000."""
UNLIMITED_OUTPUT = 131_072
"""Used as the limit of a request without one, where the format has no default."""
SHOWN_FACTOR = 4
"""Random letters have up to 1.8 times the tokens that the rule counts; a tokeniser of single bytes has up to 4."""


class Ending(Enum):
    """How an attempt ended, as far as its cost depends on it."""

    UNSENT = "not sent"
    """No connection, or a reused connection that the upstream was already closing: costs nothing."""
    REFUSED = "refused"
    """A whole answer with an error status or a redirect, or an error in place of an answer: costs nothing."""
    WHOLE = "whole"
    ERROR = "an error behind some output"
    BROKEN = "broken off"
    """Cut, too long, not decodable, not HTTP, not JSON, no event, or a status that is neither 200 nor an error."""
    SILENT = "silent"
    """Timed out here or at a proxy of the upstream."""
    STOPPED = "stopped"
    """The gateway closed the connection: the client left, the gateway ends, or another prompt of the call failed."""


FREE = frozenset({Ending.UNSENT, Ending.REFUSED})


class Charge(NamedTuple):
    """The usage that an attempt is charged."""

    usage: Usage
    doubts: tuple[str, ...] = ()
    """Counts of the upstream's report that cannot be true: kinds of tokens."""


class Shown(NamedTuple):
    """The part of an answer that arrived, if the answer has no report that counts."""

    tokens: int = 0
    events: int = 0
    """Number of events with text."""
    report: Usage | None = None
    has_reasoned: bool = False
    model: str | None = None
    named: Usage = Usage()
    """The units, the service and the prompts of searches that the answer names beside its report."""
    has_media: bool = False
    """Whether some of it is sound or a picture, whose tokens are not counted."""
    has_compacted: bool = False
    """Whether the prompt was also read to shorten it, which a report counts at its end only."""
    is_stream: bool = False
    """The head of an event stream arrived."""
    elapsed_s: float = 0.0
    """Seconds since the request was sent."""


def _nothing_shown() -> int:
    return 0


class SentRequest(NamedTuple):
    """The facts of an upstream request that its cost depends on, and the ceilings of its usage."""

    call: Call
    routed_model: str | None = None
    """The model's name at the upstream, if it differs."""
    output_limit: int | None = None
    """Tokens per candidate in the forwarded body; None: it has no limit."""
    count_texts: token_rule.CountsTexts = token_rule.count
    pieces: Sequence[bytes | memoryview] = ()
    """The bytes of the request."""
    uploaded_bytes: int = 0
    """The size of a body that is sent in pieces, or is gone."""

    @property
    def reserved_output(self) -> int:
        """Tokens that all candidates together may have, as reserved."""
        return windows.output_limit(self.call) * self.call.params.candidates

    def texts_of(self, body: bytes) -> list[bytes]:
        """The generated texts in an answer to it, as in its JSON."""
        if (texts := self.texts) is None:
            return [reported_usage.as_in_json(body)]
        return [] if texts is NO_TEXT else texts.findall(body)

    @property
    def texts(self) -> re.Pattern[bytes] | None:
        """A pattern that finds the generated texts in an answer to it; None: the whole answer is a text."""
        spec = FORMATS[self.call.endpoint]
        return None if spec.is_text is not None and spec.is_text(self.call.params) else spec.texts

    def count(self, texts: Iterable[bytes]) -> int:
        """Tokens of generated texts, as in JSON."""
        return token_rule.tokens_of(sum([self.count_texts(text + b'"').quarters for text in texts]))

    def prompt_ceiling(self) -> int:
        """The most prompt tokens that the request can have."""
        return prompt_ceiling(self._bytes, self.call.params)

    def output_ceiling(self, shown_tokens: int, *, reasons: bool) -> int:
        """The most output tokens that the request can have if the answer shows this many."""
        params = self.call.params
        limit = windows.output_limit(self.call)
        if self.output_limit is None and params.default_output is None:
            limit = max(limit, UNLIMITED_OUTPUT)
        most = 2 * max(limit, self.output_limit or 0) + (REASONING_ALLOWANCE if reasons else 0)
        most += SHOWN_FACTOR * -(-shown_tokens // max(1, params.choices))
        if params.document.members.get("prediction") is not None:
            most += self._bytes
        return most * params.candidates + OUTPUT_ALLOWANCE

    def allows(self, report: Usage, count_shown: Callable[[], int] = _nothing_shown) -> bool:
        """Whether a report is below both ceilings. Counts the shown tokens only if the answer depends on them."""
        return report == self.bounded(report, count_shown)

    def bounded(self, report: Usage, count_shown: Callable[[], int] = _nothing_shown) -> Usage:
        """The report, or what of it is below the ceilings, marked as an estimate."""
        prompt, output = report.prompt_tokens, report.completion_tokens
        if prompt > PROMPT_ALLOWANCE:
            prompt = min(prompt, self.prompt_ceiling())
        if output > OUTPUT_ALLOWANCE:
            reasons = report.reasoning_tokens > 0 or self.may_reason
            if output > self.output_ceiling(0, reasons=reasons):
                output = min(output, self.output_ceiling(count_shown(), reasons=reasons))
        more = report.more and most_units(report.more, self.call.params.units)
        if (prompt, output, more) == (report.prompt_tokens, report.completion_tokens, report.more):
            return report
        bounded = report._replace(prompt_tokens=prompt, completion_tokens=output, more=more, parts=())
        return bounded._replace(source="estimated")

    @property
    def may_reason(self) -> bool:
        """Whether the answer may have reasoning that is billed."""
        return may_reason(self.call, (self.call.params.model, self.routed_model))

    @property
    def _bytes(self) -> int:
        return sum([len(piece) for piece in self.pieces]) + self.uploaded_bytes


def ending_of(failure: Failure) -> Ending:
    if failure.phase in (Phase.CONNECT, Phase.STALE):
        return Ending.UNSENT
    if failure.phase is Phase.REFUSED:
        if failure.status in TIMED_OUT_STATUSES:
            return Ending.SILENT
        return Ending.BROKEN if failure.status is not None and failure.status < 300 else Ending.REFUSED
    return Ending.SILENT if failure.fault is Fault.TIMEOUT else Ending.BROKEN


def estimate(sent: SentRequest, ending: Ending, shown: Shown) -> Usage:
    """The rule for an attempt without a report that counts."""
    if ending in FREE:
        return Usage()
    known = sent.call.params.known_usage
    if known is not None and shown.report is None:
        if ending is Ending.WHOLE:
            return _in_priced_units(sent.call, known, shown.tokens)
        return _in_priced_units(sent.call, known._replace(source="estimated"), max(shown.tokens, sent.reserved_output))
    call, report, named = sent.call, reported_usage.coherent(shown.report or Usage()), shown.named
    completion = max(shown.tokens, shown.events)
    if sent.output_limit is not None:
        most = sent.output_limit * call.params.candidates
        if shown.events <= most or _is_echo(call):
            completion = min(completion, most)
    seen = max(0 if shown.has_media else completion, report.completion_tokens)
    completion = max(completion, report.completion_tokens, _unseen(sent, ending, shown))
    prompt, more = report.prompt_tokens or call.params.prompt_tokens, units.highest(report.more, named.more)
    if shown.has_compacted and not report.parts:
        prompt += call.params.prompt_tokens
    variant = report.variant or named.variant or windows.variants_of(call.params)[0]
    kinds = prompt + named.prompt_tokens, completion, report.cached_tokens, report.reasoning_tokens
    usage = Usage(*kinds, "estimated", more, variant)
    usage = windows.at_dearest(call, usage, 0 if report.prompt_tokens else prompt, completion - seen)
    return reported_usage.coherent(usage)


def _unseen(sent: SentRequest, ending: Ending, shown: Shown) -> int:
    """The output that may have been generated altogether where not all of it was shown, else 0.

    A stream that has shown output shows what it generates; a plain answer, and a stream before its first output, do
    not. Once a stream is silent, neither does it.
    """
    call = sent.call
    names = (call.params.model, sent.routed_model, shown.model)
    is_whole = ending is Ending.WHOLE
    if shown.has_media:
        return sent.reserved_output
    if may_be_hidden(call, names, has_reasoned=shown.has_reasoned, is_whole=is_whole):
        return sent.reserved_output
    if is_whole or ending is Ending.ERROR:
        return 0
    has_output = shown.tokens > 0 or shown.events > 0 or (shown.report is not None and shown.report.completion_tokens)
    if shown.is_stream and has_output and ending is not Ending.SILENT:
        return 0
    if ending is Ending.STOPPED and call.params.stream:
        pace = UNSEEN_TOKENS_PER_S * call.params.candidates
        return min(sent.reserved_output, int(shown.elapsed_s * pace) + 1)
    return sent.reserved_output


def of_stream(sent: SentRequest, scan: Scan, ending: Ending, elapsed_s: float = 0.0) -> Charge:
    """Returns the charge of a streamed answer, which may be incomplete."""
    report, excess = scan.usage, scan.excess
    bounded = None if excess is None else sent.bounded(excess, scan.delivered_tokens)
    doubts = () if excess is None or bounded is None else _doubts(excess, bounded)
    if report is not None and scan.is_usage_final and _is_plausible(sent.call, report, has_text=scan.has_text):
        return _believed(sent.call, report, doubts, lambda: scan.has_media)
    if bounded is not None and scan.is_complete:
        return _believed(sent.call, bounded, doubts, lambda: scan.has_media)
    if scan.is_complete and scan.error is None:
        ending = Ending.WHOLE
    shown = Shown(
        scan.delivered_tokens(), scan.text_events(), report, scan.has_reasoned, scan.model, scan.named(),
        scan.has_media, scan.has_compacted, is_stream=True, elapsed_s=elapsed_s,
    )  # fmt: skip
    return Charge(estimate(sent, ending, shown), doubts)


def is_settled_by(sent: SentRequest, report: Usage | None) -> bool:
    """Whether the charge of a plain answer with this report does not depend on its text."""
    return report is not None and report.completion_tokens > 0 and sent.allows(report)


def counted_by_beginning(sent: SentRequest, report: Usage | None, body: bytes, beginning: int) -> PlainText | None:
    """The text of a plain answer where these bytes of its beginning have all of the limit that was sent: further text
    is not charged. None: all of it has to be counted."""
    if sent.output_limit is None or (report is not None and report.completion_tokens):
        return None
    # A text may be cut there: the quote ends it.
    found = reported_usage.plain_text(body[:beginning] + b'"', sent.texts, FORMATS[sent.call.endpoint].media)
    return None if found.tokens < sent.output_limit * sent.call.params.candidates else found


def of_plain(
    sent: SentRequest, report: Usage | None, body: bytes, model: str | None, ending: Ending = Ending.WHOLE,
    counted: PlainText | None = None,
) -> Charge:  # fmt: skip
    """Returns the charge of a plain answer that is whole JSON, with the upstream's report in it, if there is one.
    `counted`: its text, if that was counted already."""
    doubts: tuple[str, ...] = ()
    if report is not None:
        bounded = sent.bounded(report, lambda: sent.count(sent.texts_of(body)) if counted is None else counted.tokens)
        if bounded is not report:
            report, doubts = bounded, _doubts(report, bounded)
        if report.completion_tokens:
            return _believed(sent.call, report, doubts, lambda: _has_media(sent, body))
    texts = sent.texts_of(body) if counted is None else ()
    has_text = bool(texts) if counted is None else counted.number > 0
    if report is not None and _is_plausible(sent.call, report, has_text=has_text):
        return _believed(sent.call, report, doubts, lambda: _has_media(sent, body))
    if counted is None:
        spec = FORMATS[sent.call.endpoint]
        beside = (False, False) if spec.texts is NO_TEXT else reported_usage.beside_text(body, spec.media)
        counted = PlainText(sent.count(texts), len(texts), *beside)
    shown = Shown(counted.tokens, has_text, report, counted.has_reasoned, model, has_media=counted.has_media)
    return Charge(estimate(sent, ending, shown), doubts)


def of_broken(sent: SentRequest, ending: Ending, body: bytes = b"", elapsed_s: float = 0.0) -> Charge:
    """Returns the charge of a plain answer that is not whole JSON, or of no answer. A report in it is a lower bound."""
    tokens, report = 0, reported_usage.found_in(body, FORMATS[sent.call.endpoint].usage)
    doubts: tuple[str, ...] = ()
    if body and sent.output_limit is None and ending not in FREE:  # else the reservation covers all text
        tokens = sent.count(sent.texts_of(body[:MAX_BROKEN_BYTES]))
    if report is not None:
        bounded = sent.bounded(report, lambda: tokens)
        report, doubts = bounded, _doubts(report, bounded)
    return Charge(estimate(sent, ending, Shown(tokens, report=report, elapsed_s=elapsed_s)), doubts)


def _has_media(sent: SentRequest, body: bytes) -> bool:
    return FORMATS[sent.call.endpoint].media.search(body, 0, MAX_BROKEN_BYTES) is not None


def _believed(call: Call, report: Usage, doubts: tuple[str, ...], has_media: Callable[[], bool]) -> Charge:
    """The charge by a report that is below the ceilings and plausible (rule 1). `has_media`: whether some of the answer
    is sound or a picture."""
    usage = reported_usage.coherent(report)
    if usage is not report:
        doubts += _doubts(report, usage)
    if call.params.variant and not usage.variant:
        usage = usage._replace(variant=call.params.variant)
    elif not (usage.variant or usage.parts or call.model.price is None or call.model.price.nusd_per_million):
        usage = _at_asked_service(call, usage)
    # Its completion tokens are believed, also if it counts no prompt tokens.
    is_of_something = usage.completion_tokens > 0 or call.params.default_output == 0
    if not (usage.prompt_tokens or usage.more) and is_of_something and call.params.prompt_tokens:
        prompt, completion = call.params.prompt_tokens, usage.completion_tokens
        if usage.source == "estimated" and report.source == "estimated":  # the total of both
            prompt = min(prompt, completion)
            completion -= prompt
        usage = usage._replace(prompt_tokens=prompt, completion_tokens=completion, source="estimated")
    price = call.model.price
    if price is not None and (price.image_out or price.audio_out or price.video_out) and usage.completion_tokens:
        usage = _with_media(call, usage, has_media)
    if call.params.token_parts:
        usage = _in_priced_units(call, _of_possible_length(call, usage))
    return Charge(usage, doubts)


_MADE = frozenset({"image_out", "audio_out", "video_out"})


def _with_media(call: Call, usage: Usage, has_media: Callable[[], bool]) -> Usage:
    """The usage with all its output at the dearest row that the call can use, where some of it is sound or a picture
    and the report does not state which: relays drop the details (`estimate`)."""
    if usage.parts or not _MADE.isdisjoint(dict(usage.more)) or not has_media():
        return usage
    dearest = windows.at_dearest(call, usage, 0, usage.completion_tokens)
    return usage if dearest == usage else dearest._replace(source="estimated")


def _at_asked_service(call: Call, usage: Usage) -> Usage:
    """The usage at the service that the request asked for, where the answer names none and that one is dearer."""
    services = ("", windows.variants_of(call.params)[0])
    costs = [pricing.cost_nusd(call.model.price, usage._replace(variant=each), call.started) or 0 for each in services]
    return usage._replace(variant=services[1]) if costs[1] > costs[0] else usage


_ROUNDED_MS = 1000
"""Milliseconds by which a true length may be too short, because it is rounded to seconds."""


def _of_possible_length(call: Call, usage: Usage) -> Usage:
    """The usage, or the estimate of the request where an upstream reports less sound than its file must have: some
    report the length in the file's header, which may be false."""
    reported_ms = dict(usage.more).get("audio_ms", 0)
    is_in_tokens = usage.prompt_tokens or usage.completion_tokens
    if is_in_tokens or reported_ms + _ROUNDED_MS >= call.params.least_audio_ms:
        return usage
    return usage._replace(source="estimated", more=call.params.units)


def _in_priced_units(call: Call, counted: Usage, made: int = 0) -> Usage:
    """The counted units or the reported tokens. If the model has a price only for the other of these, an estimate of
    that: what the request asks for, or its prompt and the output that was seen (`made`), else the whole reserved
    output."""
    params, price = call.params, call.model.price
    if not params.token_parts or price is None or pricing.cost_nusd(price, counted, call.started) is not None:
        return counted
    if counted.prompt_tokens or counted.completion_tokens:
        other = Usage(source="estimated", more=params.units, variant=params.variant)
    else:
        prompt, output = params.prompt_tokens, made or windows.output_limit(call) * params.candidates
        parts = units.within(params.token_parts, prompt, output)
        other = Usage(prompt, output, source="estimated", more=parts, variant=counted.variant)
    return counted if pricing.cost_nusd(price, other, call.started) is None else other


def _doubts(report: Usage, believed: Usage) -> tuple[str, ...]:
    """The kinds of tokens, and the other units, of which not all are believed."""
    if report[:4] == believed[:4] and report.more == believed.more:
        return ()
    left = dict(believed.more)
    beside = [name for name, count in report.more if name in units.BESIDE and count > left.get(name, 0)]
    return (*[kind for kind, one, other in zip(KINDS, report[:4], believed[:4], strict=True) if one > other], *beside)


def _is_plausible(call: Call, report: Usage, *, has_text: bool) -> bool:
    if report.completion_tokens > 0 or not has_text:
        return True
    # A transcript may be billed by the length of its sound alone.
    return (_is_echo(call) and report.prompt_tokens > 0) or any(name == "audio_ms" for name, _ in report.more)


def _is_echo(call: Call) -> bool:
    """Whether what is delivered begins with the prompt."""
    return bool(call.params.document.members.get("echo"))
