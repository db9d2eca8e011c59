"""Records how llama.cpp answers one call, as chat and as Responses or Messages:
python -m tests.wings.translate.llama_record

Writes a file of tests/recorded/llama_cpp for each case: `request` is the client's body and `sent` our translation of
it; `answer` or `chunks` is what llama.cpp's chat answers to that, and `theirs` what its own endpoint of the client's
format answers to `request`. The model writes the same for the same prompt, so that the two are one generation.
"""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

from tests.fakes.llama_server import LlamaServer, version

from .translated import CREATED, asked

FOLDER = Path(__file__).parents[2] / "recorded" / "llama_cpp"
PATHS = {"messages": "/messages", "responses": "/responses"}
MODEL = "words"
QUICK = {"chat_template_kwargs": {"enable_thinking": False}}
"""Asks the template for no thinking; the parameter is llama.cpp's, and passed on."""

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
}
CALL = '{"city":"Oslo","unit":"celsius"}'
SAID = {"role": "user", "content": "How is the weather in Oslo?"}
SALT = {"role": "user", "content": "What is salt?"}
"""The model thinks and then answers."""

_TOOL = {"name": "get_weather", "description": "The weather of a city.", "input_schema": WEATHER}
_MESSAGES: dict[str, dict[str, Any]] = {
    "text": {"messages": [{"role": "user", "content": "Tell me of the sea."}], **QUICK},
    "turns": {
        "system": [{"type": "text", "text": "You are a poet."}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hello."}, {"type": "text", "text": "A poem?"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "The sea is old."}]},
            {"role": "user", "content": "Go on."},
        ],
        **QUICK,
    },
    "cut-by-limit": {"messages": [SAID], "max_tokens": 4, **QUICK},
    "stop-sequence": {"messages": [SAID], "stop_sequences": [" is", " the", " and"], **QUICK},
    "thinking": {"messages": [SALT], "thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000},
    "unasked-thinking": {"messages": [SALT]},
    "forced-tool": {"messages": [SAID], "tools": [_TOOL], "tool_choice": {"type": "any"}},
    "named-tool": {"messages": [SAID], "tools": [_TOOL], "tool_choice": {"type": "tool", "name": "get_weather"}},
    "one-tool-at-most": {
        "messages": [SAID], "tools": [_TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    },
    "tool-cut-by-limit": {"messages": [SAID], "tools": [_TOOL], "tool_choice": {"type": "any"}, "max_tokens": 60},
    "tool-result": {
        "messages": [
            SAID,
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": json.loads(CALL)},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "rain"}]}
                ],
            },
        ],
        "tools": [_TOOL],
        **QUICK,
    },
}  # fmt: skip

_FUNCTION = {"type": "function", "name": "get_weather", "description": "The weather of a city.", "parameters": WEATHER}
_RESPONSES: dict[str, dict[str, Any]] = {
    "text": {"instructions": "You are a poet.", "input": "Tell me of the sea.", **QUICK},
    "turns": {
        "input": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "Hello."}]},
            {
                "type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
                "content": [{"type": "output_text", "text": "The sea is old.", "annotations": []}],
            },
            {"role": "user", "content": "Go on."},
        ],
        **QUICK,
    },
    "cut-by-limit": {"input": [SAID], "max_output_tokens": 16, **QUICK},
    "reasoning": {"input": [SALT], "max_output_tokens": 2000},
    "forced-tool": {"input": [SAID], "tools": [_FUNCTION], "tool_choice": "required"},
    "two-calls": {
        "input": "How are Oslo and Rome?", "tools": [_FUNCTION], "tool_choice": "required",
        "parallel_tool_calls": True, "max_output_tokens": 400,
    },
    "tool-cut-by-limit": {"input": [SAID], "tools": [_FUNCTION], "tool_choice": "required", "max_output_tokens": 60},
    "tool-result": {
        "input": [
            SAID,
            {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": CALL},
            {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
        ],
        "tools": [_FUNCTION],
        **QUICK,
    },
}  # fmt: skip


def cases() -> dict[str, dict[str, Any]]:
    """The requests by their names, FORMAT/KIND-CASE, each plain and as a stream."""
    every = {"messages": ({"max_tokens": 200}, _MESSAGES), "responses": ({"max_output_tokens": 200}, _RESPONSES)}
    return {
        f"{way}/{kind}-{name}": {"model": MODEL, **limit, **request, **({"stream": True} if kind == "stream" else {})}
        for way, (limit, requests) in every.items()
        for name, request in requests.items()
        for kind in ("plain", "stream")
    }


def without_chance(recorded: Any) -> Any:
    """Without what another recording has otherwise: times, and ids, which are numbered."""
    numbers: dict[str, str] = {}
    text = re.sub(
        r"\b[A-Za-z0-9]{32}\b|(?<=_)[A-Za-z0-9]{32}\b",
        lambda found: numbers.setdefault(found[0], f"ID{len(numbers) + 1}"),
        json.dumps(recorded),
    )
    return json.loads(re.sub(r'"(created|created_at|completed_at)": \d+', rf'"\1": {CREATED}', text))


def without_timings(answer: Any) -> Any:
    """An answer, or the data of its events, without the time that each token took."""
    if isinstance(answer, list):
        return [without_timings(each) for each in answer]
    return {name: value for name, value in answer.items() if name != "timings"}


def record(server: LlamaServer, name: str, request: dict[str, Any]) -> dict[str, Any]:
    """What the server answers in one case; the gateway asks each stream for its usage."""
    way = name.partition("/")[0]
    sent = asked(way, request).body
    kind, more = "answer", {}
    if request.get("stream"):
        kind, more = "chunks", {"stream_options": {"include_usage": True}}
    ours, theirs = server.post("/chat/completions", sent | more), server.post(PATHS[way], request)
    received = without_chance({kind: without_timings(ours), "theirs": without_timings(theirs)})
    return {"version": version(), "request": request, "sent": sent, **received}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, LlamaServer(Path(folder)) as server:
        for name, request in cases().items():
            path = FOLDER / f"{name}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(record(server, name, request), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
