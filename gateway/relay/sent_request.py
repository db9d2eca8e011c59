"""One attempt's request as far as its cost depends on it, and the most that the upstream can have used for it.

The ceilings bound usage reports. They are generous, so that no true report exceeds one:

1. Prompt: one token per byte of the request, because a token has at least one byte; `PROMPT_ALLOWANCE` for text that
   the upstream adds (chat templates, its own instructions); what is not in its bytes (formats/ceilings.py).
2. Output: twice the limit of all candidates, because upstreams count end tokens and rejected drafts; `SHOWN_FACTOR`
   tokens for each token that formats/token_rule.py counts in the answer, because some upstreams ignore the limit;
   `OUTPUT_ALLOWANCE` for pictures, sound and formats; `REASONING_ALLOWANCE` for each candidate that may reason, because
   some upstreams limit only the text behind the reasoning; the request's bytes if it has a `prediction`, because
   rejected parts of it are output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from gateway.formats import FORMATS, token_rule
from gateway.formats.ceilings import OUTPUT_ALLOWANCE, PROMPT_ALLOWANCE, added_tokens
from gateway.formats.format import NO_TEXT
from gateway.quota import windows
from gateway.records import Call, Usage

from . import reasoning_models

REASONING_ALLOWANCE = 131_072
"""The longest output of common reasoning models, rounded up: 128,000."""
UNLIMITED_OUTPUT = 131_072
"""Used as the limit of a request without one, where the format has no default."""
SHOWN_FACTOR = 4
"""Random letters have up to 1.8 times the tokens that the rule counts; a tokeniser of single bytes has up to 4."""


def _nothing_shown() -> int:
    return 0


class SentRequest(NamedTuple):
    """What the upstream was asked for."""

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
        texts = FORMATS[self.call.endpoint].texts
        return [] if texts is NO_TEXT else texts.findall(body)

    def count(self, texts: Iterable[bytes]) -> int:
        """Tokens of generated texts, as in JSON."""
        return token_rule.tokens_of(sum([self.count_texts(text + b'"').quarters for text in texts]))

    def prompt_ceiling(self) -> int:
        """The most prompt tokens that the request can have."""
        plain = self._bytes + PROMPT_ALLOWANCE
        return plain + added_tokens(self.call.params.document)

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
        if (prompt, output) == (report.prompt_tokens, report.completion_tokens):
            return report
        return report._replace(prompt_tokens=prompt, completion_tokens=output, source="estimated", parts=())

    @property
    def may_reason(self) -> bool:
        """Whether the answer may have reasoning that is billed."""
        return reasoning_models.may_reason(self.call, (self.call.params.model, self.routed_model))

    @property
    def _bytes(self) -> int:
        return sum([len(piece) for piece in self.pieces]) + self.uploaded_bytes
