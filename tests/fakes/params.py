"""What the reader of each format sets in `Params`, for tests that make their own."""

from __future__ import annotations

from typing import Any

SET_BY_FORMAT: dict[str, dict[str, Any]] = {
    "completions": {"default_output": 16},
    "chat": {"output_param": "max_completion_tokens"},
    "embeddings": {"default_output": 0, "output_param": "input", "prompt_param": "input"},
}
