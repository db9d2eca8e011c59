"""An upstream that has chat only and makes a coding agent use its tools: for agents behind a translation.

    agent = ChatAgent([("Write", {...}), ("Bash", {...})])
    upstream.answer_with(always=agent.behaviour)

Each turn asks for the next of these calls, and the last one ends the task. `ledger` has what was reported for each
request. Requests without the first tool, such as those for a title, get a short text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.scripted import Wire, ok_json, stream

SAID = "All done."


@dataclass
class ChatAgent:
    """The upstream."""

    calls: Sequence[tuple[str, dict[str, Any]]]
    """The name of a tool and its arguments, for each turn but the last."""
    said: str = SAID
    """The text of the last turn, and of requests without the first tool."""
    ledger: list[dict[str, Any]] = field(default_factory=list)

    async def behaviour(self, wire: Wire) -> None:
        asked = wire.request.json
        names = [tool["function"]["name"] for tool in asked.get("tools") or []]
        turn = sum(message["role"] == "tool" for message in asked["messages"])
        number = len(self.ledger) + 1
        usage = {
            "prompt_tokens": 1000 * number, "completion_tokens": 10 + number, "total_tokens": 10 + 1001 * number,
            "prompt_tokens_details": {"cached_tokens": 100 * number},
        }  # fmt: skip
        self.ledger.append(usage)
        message: dict[str, Any] = {"role": "assistant", "content": self.said}
        reason = "stop"
        if turn < len(self.calls) and self.calls[0][0] in names:
            name, arguments = self.calls[turn]
            called = {"name": name, "arguments": json.dumps(arguments)}
            message["content"] = None
            message["tool_calls"] = [{"id": f"call_{number}", "type": "function", "function": called}]
            reason = "tool_calls"
        answer = {"id": f"chatcmpl-{number}", "created": 1700000000, "model": asked["model"]}
        if not asked.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason}
            await ok_json(answer | {"object": "chat.completion", "choices": [choice], "usage": usage})(wire)
            return
        for index, call in enumerate(message.get("tool_calls", ())):
            call["index"] = index
        choices = [
            {"index": 0, "delta": message, "finish_reason": None}, {"index": 0, "delta": {}, "finish_reason": reason},
        ]  # fmt: skip
        events = [answer | {"object": "chat.completion.chunk", "choices": [choice]} for choice in choices]
        events.append(answer | {"object": "chat.completion.chunk", "choices": [], "usage": usage})
        await stream(events)(wire)

    def reported(self) -> list[tuple[int, int, int]]:
        """Prompt, cached and completion tokens of each request."""
        return [
            (each["prompt_tokens"], each["prompt_tokens_details"]["cached_tokens"], each["completion_tokens"])
            for each in self.ledger
        ]


def recorded(records: Iterable[Mapping[str, Any]]) -> list[tuple[int, int, int]]:
    """The same of the gateway's records, in the order of the requests."""
    return sorted((each["prompt_tokens"], each["cached_tokens"], each["completion_tokens"]) for each in records)
