"""The charge of the transcriptions of a Realtime session: each is a call of its own, from its beginning on.

1. A transcription begins when the client commits its audio, when the upstream finds the beginning of a speech, or with
   its first text. From then on it holds a reservation, and is charged by the usage that the upstream reports. A speech
   that goes on at the end of the session is charged up to the audio that was sent last: the upstream may end it there.
2. Without a report (the client leaves, the event has none, it fails behind some text) it is charged an estimate: by the
   length of its audio, or by its tokens, whichever its model has a price for; the dearer where it has both.
3. A change of the model counts when the upstream has confirmed it. Until then the dearer of both models is charged; a
   refused change changes nothing.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from gateway import units
from gateway.accounting.call_log import CallLog
from gateway.formats import reported_usage, token_rule
from gateway.formats.reported_usage import HEARD_TOKENS_PER_S, WRITTEN_TOKENS_PER_S
from gateway.formats.token_rule import CountsTexts
from gateway.records import Ended, Usage
from gateway.tasks import to_its_end

from . import formats as realtime

UNKNOWN = "transcription"
"""The name of a transcriber that is not known: it has the price of the session's model."""

MAX_UNREPORTED = 256
"""Transcriptions without a report, and commits without an answer; beyond them the oldest is charged an estimate."""


class Draws(Protocol):
    """Reserves a call with this number of tokens. `has_begun`: the upstream has begun it, so that it is counted
    whatever the quotas have left. Raises the refusal."""

    def __call__(self, prompt_tokens: int, output_tokens: int, *, has_begun: bool) -> Awaitable[CallLog]: ...


class _Change:
    """The model that transcribes from one `session.update` on; None: nothing does."""

    def __init__(self, model: str | None, event_id: str | None = None, *, is_change: bool = True) -> None:
        self.model = model
        self.event_id = event_id
        self.is_change = is_change
        """False: the update is about something else, and only waits for its answer."""
        self.is_refused = False


class Transcribers:
    """The models that may be the one that transcribes. `has_unknown`: a session begins with one of the upstream's."""

    def __init__(self, *, has_unknown: bool = False) -> None:
        self._confirmed = _Change(UNKNOWN if has_unknown else None)
        self._waiting: deque[_Change] = deque()

    def __repr__(self) -> str:
        return f"<Transcribers {self._confirmed.model}, {len(self._waiting)} updates without an answer>"

    @property
    def unanswered(self) -> int:
        """The updates without an answer."""
        return len(self._waiting)

    def asked(self, event_id: str | None, model: str | None, *, is_change: bool) -> None:
        """An update of the client is sent."""
        self._waiting.append(_Change(model, event_id, is_change=is_change))

    def refused(self, about: str) -> None:
        """The upstream has refused the client's event with this id."""
        found = next((each for each in self._waiting if each.event_id == about), None)
        if found is not None:
            found.is_refused = True
            self._waiting.remove(found)

    def answered(self) -> None:
        """The upstream has confirmed the first update that has no answer."""
        change = self._waiting.popleft() if self._waiting else None
        if change is not None and change.is_change:
            self._confirmed = change

    def report(self, model: str | None) -> None:
        """The upstream has reported which model transcribes."""
        if model != self._confirmed.model:
            self._confirmed = _Change(model)

    def possible(self) -> tuple[_Change, ...]:
        """All that may be the one; empty: nothing transcribes."""
        found = [each for each in (self._confirmed, *self._waiting) if each.is_change and each.model is not None]
        return tuple(found)


class _Transcription:
    """A transcription of the session that has not ended."""

    def __init__(self, audio_ms: int, models: tuple[_Change, ...], event_id: str | None = None) -> None:
        self.audio_ms = audio_ms
        self.models = models
        self.event_id = event_id
        """Id of the event with the client's commit."""
        self.log: CallLog | None = None
        self.quarters = 0
        """Quarter tokens of the transcript that were shown."""
        self.is_early = False
        """It began before its commit was answered."""


class TranscriptionAccounts:
    """The transcriptions of one session. `cost` returns that of a usage, None where it is not known."""

    def __init__(
        self, draw: Draws, cost: Callable[[CallLog, Usage], int | None], count_texts: CountsTexts,
        transcribers: Transcribers,
    ) -> None:  # fmt: skip
        self.transcribers = transcribers
        self.committed_ms = 0
        """Milliseconds of all audio that is in the conversation by now."""
        self._draw = draw
        self._cost = cost
        self._count = count_texts
        self._bytes_per_s = realtime.BYTES_PER_S
        self._characters = 0
        """Base64 characters of the audio in the buffer."""
        self._being_cleared = 0
        self._sent_characters = 0
        """Base64 characters of all audio of the session."""
        self._speech: tuple[str, int] | None = None
        """The item of the speech that goes on, and where it began, in milliseconds."""
        self._speaking: _Transcription | None = None
        """That of the speech, until it has ended."""
        self._committed: deque[_Transcription] = deque()
        """Those whose commit has no answer yet."""
        self._running: dict[str, _Transcription] = {}

    def __repr__(self) -> str:
        return f"<TranscriptionAccounts {len(self._committed)} committed, {len(self._running)} running>"

    # ------------------------------------------------------------------------------------------------ from the client

    def note_rate(self, bytes_per_s: int) -> None:
        """The client may send audio of this rate: the slowest counts, whose length is the greatest."""
        self._bytes_per_s = min(self._bytes_per_s, bytes_per_s)

    def appended(self, audio: Any) -> None:
        """Audio for the buffer, in base64."""
        characters = len(audio) if isinstance(audio, str) else 0
        self._characters += characters
        self._sent_characters += characters

    def clears(self) -> None:
        """The client empties the buffer, of which the upstream may have committed a part before."""
        self._being_cleared += self._characters
        self._characters = 0

    async def commits(self, event_id: str | None) -> None:
        """The client commits the buffer: before the upstream hears of it. Raises the refusal of its reservation."""
        made = _Transcription(self._take(), self.transcribers.possible(), event_id)
        if made.models:
            await self._reserve(made, has_begun=False)
        if len(self._committed) >= MAX_UNREPORTED:
            self._estimate(self._committed.popleft(), 200, "done", None)
        self._committed.append(made)

    # ---------------------------------------------------------------------------------------------- from the upstream

    def refused(self, about: str) -> None:
        """The upstream has refused the client's event with this id: what it committed is in the buffer still."""
        found = next((each for each in self._committed if each.event_id == about), None)
        if found is not None:
            self._committed.remove(found)
            self._characters += found.audio_ms * self._bytes_per_s // 750
            self.committed_ms -= found.audio_ms
            if found.log is not None:
                found.log.reservation.take_back()

    async def saw(self, kind: str, event: Mapping[str, Any]) -> None:
        """An event that begins a transcription, ends one, or brings some of its text. Raises the refusal of a
        reservation that the ledger cannot make. It is counted also if this is cancelled meanwhile."""
        await to_its_end(self._saw(kind, event), "realtime-transcription")

    async def _saw(self, kind: str, event: Mapping[str, Any]) -> None:
        item = event.get("item_id")
        item = item if isinstance(item, str) else ""
        if kind == realtime.COMMITTED:
            await self._is_committed(item)
        elif kind == realtime.SPEECH_STARTED:
            await self._starts(item, _whole(event.get("audio_start_ms")))
        elif kind == realtime.SPEECH_STOPPED:
            await self._is_committed(item, self._length_of(item, event.get("audio_end_ms")))
        elif kind == realtime.CLEARED:
            self._being_cleared = 0
            if (dropped := self._spoken(None)) is not None and dropped.log is not None:
                dropped.log.reservation.take_back()
        elif kind in realtime.TRANSCRIPT_DELTAS:
            self._show(await self._find(item), event.get("delta") or event.get("text"))
        elif kind == realtime.TRANSCRIBED:
            await self._ended(item, event)
        elif kind == realtime.TRANSCRIPTION_FAILED:
            await self._failed(item, event)

    def close(self, status: int, ended: Ended, error: str | None) -> None:
        """Charge what has no report. May be called again."""
        spoken = self._spoken(None)
        for each in (*self._committed, *self._running.values(), *([] if spoken is None else [spoken])):
            self._estimate(each, status, ended, error)
        self._committed.clear()
        self._running.clear()

    # ---------------------------------------------------------------------------------------------------------- below

    def _take(self) -> int:
        """The length of the audio in the buffer, which is empty then."""
        length = realtime.audio_ms(self._characters + self._being_cleared, self._bytes_per_s)
        self._characters = self._being_cleared = 0
        self.committed_ms += length
        return length

    def _length_of(self, item: str, end: Any) -> int | None:
        """The length of the speech of this item, which ends there; None: it is not known."""
        if self._speech is None or self._speech[0] != item:
            return None
        return max(0, _whole(end) - self._speech[1]) or None

    async def _starts(self, item: str, start_ms: int) -> None:
        """The upstream hears a speech. One that it has begun before and not ended may be billed, too."""
        if self._speech is not None and (before := self._spoken(None)) is not None:
            await self._begin(self._speech[0], before)
        self._speech = item, start_ms
        if item not in self._running and (models := self.transcribers.possible()):
            self._speaking = _Transcription(0, models)
            await self._reserve(self._speaking, has_begun=True)

    def _spoken(self, item: str | None) -> _Transcription | None:
        """The speech that goes on, if it is that of this item; None: of any. It is not held any more."""
        made = self._speaking
        if made is None or self._speech is None or item not in (None, self._speech[0]):
            return None
        self._speaking = None
        made.models = self.transcribers.possible() or made.models
        made.audio_ms = max(0, realtime.audio_ms(self._sent_characters, self._bytes_per_s) - self._speech[1])
        return made

    async def _is_committed(self, item: str, audio_ms: int | None = None) -> None:
        """The upstream has put audio into the conversation. Of a speech it is reported twice: where it ends, too."""
        known, spoken = self._running.get(item), self._spoken(item)
        if known is not None and known.is_early:
            known.is_early = False
        elif self._committed:
            made = self._committed.popleft()
            if spoken is not None and spoken.log is not None:
                spoken.log.reservation.take_back()
            if known is None and made.models:
                await self._begin(item, made)
            elif known is not None:
                known.audio_ms = max(known.audio_ms, made.audio_ms)
                if made.log is not None:
                    made.log.reservation.take_back()
        else:
            taken = self._take()
            if known is not None:
                known.audio_ms = max(known.audio_ms, audio_ms or 0) or taken
            elif spoken is not None:
                spoken.audio_ms = taken if audio_ms is None else audio_ms
                await self._begin(item, spoken)
            elif models := self.transcribers.possible():
                await self._begin(item, _Transcription(taken if audio_ms is None else audio_ms, models))

    async def _begin(self, item: str, made: _Transcription) -> None:
        if len(self._running) >= MAX_UNREPORTED:
            self._estimate(self._running.pop(next(iter(self._running))), 200, "done", None)
        self._running[item] = made
        if made.log is None:
            await self._reserve(made, has_begun=True)

    async def _find(self, item: str) -> _Transcription:
        """The one of this item, which begins now unless it is known."""
        if item not in self._running:
            await self._begin(item, self._spoken(item) or self._new())
        return self._running[item]

    def _new(self) -> _Transcription:
        """One of which nothing was known: of the audio in the buffer, if there is any."""
        if self._committed:
            made = self._committed.popleft()
            made.is_early = True
            return made
        return _Transcription(
            realtime.audio_ms(self._characters, self._bytes_per_s), self.transcribers.possible()
        )  # fmt: skip

    async def _reserve(self, made: _Transcription, *, has_begun: bool) -> None:
        by_tokens = _estimates(made.audio_ms, 0, is_whole=False)[1]
        made.log = await self._draw(by_tokens.prompt_tokens, by_tokens.completion_tokens, has_begun=has_begun)

    async def _ended(self, item: str, event: Mapping[str, Any]) -> None:
        known = await self._find(item)
        del self._running[item]
        assert known.log is not None
        whole = self._quarters_of(event.get("transcript"))
        known.quarters = max(known.quarters, whole)
        usage = reported_usage.of_transcript(event.get("usage"))
        if usage is None or (known.quarters and not usage.total_tokens and not usage.more):
            self._estimate(known, 200, "done", None, is_whole=True)
        else:
            known.log.close(status=200, usage=self._dearest(known, usage), ended="done")
        await known.log.acknowledged()

    async def _failed(self, item: str, event: Mapping[str, Any]) -> None:
        """Settles a failed transcription. One that has shown nothing is free, unless the upstream reports a usage."""
        known = self._running.pop(item, None) or self._spoken(item) or self._new()
        usage = reported_usage.of_transcript(event.get("usage"))
        if known.log is None and usage is None:
            return
        if known.log is None:
            await self._reserve(known, has_begun=True)
        assert known.log is not None
        if usage is not None:
            usage = self._dearest(known, usage)
            known.log.close(status=502, usage=usage, ended="error", error="transcription_failed")
        elif known.quarters:
            self._estimate(known, 502, "error", "transcription_failed")
        else:
            known.log.reservation.take_back()

    def _show(self, known: _Transcription, text: Any) -> None:
        known.quarters += self._quarters_of(text)

    def _quarters_of(self, text: Any) -> int:
        return self._count(json.dumps(text)[1:].encode()).quarters if isinstance(text, str) and text else 0

    def _estimate(
        self, known: _Transcription, status: int, ended: Ended, error: str | None, *, is_whole: bool = False
    ) -> None:
        """Charge one that has no report."""
        if known.log is None:
            return
        shown = token_rule.tokens_of(known.quarters)
        usage = self._dearest(known, *_estimates(known.audio_ms, shown, is_whole=is_whole))
        known.log.close(status=status, usage=usage, ended=ended, is_truncated=not is_whole, error=error)

    def _dearest(self, known: _Transcription, *usages: Usage) -> Usage:
        """Returns the usage with the highest cost among these usages, by each model that may have transcribed. Where no
        cost is known, it is the last one, which has the tokens."""
        models = known.models or self.transcribers.possible()
        names = [each.model for each in models if not each.is_refused and each.model] or [UNKNOWN]
        ways = [usage._replace(parts=(usage._replace(model=name),)) for usage in reversed(usages) for name in names]
        log = known.log
        assert log is not None

        def cost(way: Usage) -> int:
            found = self._cost(log, way)
            return -1 if found is None else found

        return max(ways, key=cost)


def _estimates(audio_ms: int, shown_tokens: int, *, is_whole: bool) -> tuple[Usage, Usage, Usage]:
    """The usage of a transcription without a report, of audio of this length, 0: not known; by its length, by its
    tokens, and by these with its audio apart. `is_whole`: all of its text was shown."""
    audio_ms = audio_ms or shown_tokens * 1000 // WRITTEN_TOKENS_PER_S
    seconds = -(-audio_ms // 1000)
    heard = HEARD_TOKENS_PER_S * seconds
    made = shown_tokens if is_whole else max(shown_tokens, WRITTEN_TOKENS_PER_S * seconds)
    return (
        Usage(source="estimated", more=units.counts({"audio_ms": audio_ms})),
        Usage(heard, made, source="estimated"),
        Usage(heard, made, source="estimated", more=units.counts({"audio_in": heard})),
    )


def _whole(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0
