"""Reads answers of Gemini's API, and the chunks of their streams, which are answers of one shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.formats.member_reader import EACH
from gateway.formats.reader import AnswerReader, objects
from gateway.records import Usage

from .usage import GeminiUsage


class GeminiReader(AnswerReader):
    """Follows one answer. `begun` and `finished` are indexes of candidates; `is_blocked`: the prompt was refused."""

    WANTED = (
        ("usageMetadata",), ("promptFeedback",), ("modelVersion",), ("error",), ("candidates", EACH, "index"),
        ("candidates", EACH, "finishReason"), ("candidates", EACH, "groundingMetadata"),
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.begun: set[int] = set()
        self.finished: set[int] = set()
        self.is_blocked = False
        self._usage = GeminiUsage()

    def facts(self, value: Mapping[str, Any]) -> Usage | None:
        if value.get("error"):
            self.take_error(value["error"])
            return None
        for place, candidate in enumerate(objects(value.get("candidates"))):
            index = candidate.get("index", place)
            index = index if isinstance(index, int) else place
            self.begun.add(index)
            if candidate.get("finishReason") not in (None, "", "FINISH_REASON_UNSPECIFIED"):
                self.finished.add(index)
        feedback = value.get("promptFeedback")
        self.is_blocked = self.is_blocked or bool(isinstance(feedback, dict) and feedback.get("blockReason"))
        self.take_model(value.get("modelVersion"))
        return self._usage.take(value)
