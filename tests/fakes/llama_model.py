"""A model for llama.cpp that fits into a test: 2 layers, 64 wide, random weights, of a fixed seed.

It writes words and ends after some; a grammar (a forced tool call, a schema) makes it write JSON. What it writes
depends on every token of its prompt, so that two requests that get the same text had the same prompt. The file is in
GGUF, version 3 (ggml's docs/gguf.md), with a vocabulary of bytes, of `WORDS`, and of the marks of ChatML.
"""

from __future__ import annotations

import math
import random
import struct
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

WIDTH, HIDDEN, LAYERS, HEADS, CONTEXT = 64, 128, 2, 4, 8192
SEED = 7
ALIGNMENT = 32

WORDS = (
    "the", "a", "sea", "ship", "wind", "salt", "old", "new", "bird", "home", "far", "light", "day", "night",
    "blue", "cold", "warm", "slow", "quick", "small", "great", "some", "each", "over", "under", "near", "river",
    "stone", "hill", "rain", "and", "then", "while", "of", "with", "to", "from", "is", "was", "goes", "comes",
    "sings", "waits",
)  # fmt: skip
MARKS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<calls>", "<tool_call>")
END = "<|im_end|>"

TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" + (tool | tojson) }}{%- endfor %}
    {{- "\\n</tools>\\nA call is:\\n<tool_call>\\n{\\"name\\": <name>, \\"arguments\\": <object>}\\n</tool_call>" }}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if message.reasoning_content %}
            {{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
        {%- endif %}
        {%- if message.content %}{{- message.content }}{%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments if call.function.arguments is string else call.function.arguments | tojson) }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if tools and messages[-1].role != 'tool' %}{{- '<calls>' }}
    {%- elif enable_thinking is defined and enable_thinking %}{{- '<think>\\n' }}{%- endif %}
{%- endif %}
"""

_NEWLINE = "\u010a"
_BIAS = 4.0
"""The first number of each embedding. No layer writes to it, so that the output's weights for it are biases."""
_BIASES = {
    END: 0.4, "</think>": 0.2, '"': 0.5, "<|im_start|>": -9.0, "<think>": -9.0, "<calls>": -9.0, "<tool_call>": -9.0,
}  # fmt: skip
_BYTE_BIAS = -2.0
_NEXT = (("<calls>", "<tool_call>"), ("<tool_call>", _NEWLINE))
"""What comes behind what: each pair has a number of its own in embeddings and output, which no layer writes to."""
_FIRST, _SECOND = 8.0, 9.0
_KEPT = 1 + len(_NEXT)


def write(path: Path) -> None:
    """Write the model."""
    tokens = list(_tokens())
    tensors = list(_tensors([token for token, _ in tokens]))
    settings = list(_settings(tokens))
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(settings))]
    parts += [_text(name) + value for name, value in settings]
    place = 0
    for name, shape, numbers in tensors:
        parts += [_text(name), struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, place)]
        place += _padded(4 * len(numbers))
    head = b"".join(parts)
    with path.open("wb") as file:
        file.write(head.ljust(_padded(len(head)), b"\0"))
        for _, _, numbers in tensors:
            file.write(numbers.tobytes().ljust(_padded(4 * len(numbers)), b"\0"))


def _padded(size: int) -> int:
    return math.ceil(size / ALIGNMENT) * ALIGNMENT


# ------------------------------------------------------------------------------------------------------------ settings


def _settings(tokens: Sequence[tuple[str, int]]) -> Iterator[tuple[str, bytes]]:
    names = [token for token, _ in tokens]
    values: dict[str, Any] = {
        "general.architecture": "llama", "general.name": "words", "llama.block_count": LAYERS,
        "llama.context_length": CONTEXT, "llama.embedding_length": WIDTH, "llama.feed_forward_length": HIDDEN,
        "llama.attention.head_count": HEADS, "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.vocab_size": len(tokens), "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": names, "tokenizer.ggml.token_type": [kind for _, kind in tokens],
        "tokenizer.ggml.merges": ["t h"], "tokenizer.ggml.bos_token_id": names.index(END),
        "tokenizer.ggml.eos_token_id": names.index(END), "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }  # fmt: skip
    for name, value in values.items():
        yield name, _typed(value)


def _typed(value: Any) -> bytes:
    """A value with its type before it."""
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _text(value)
        case [int(), *_]:
            return struct.pack(f"<IIQ{len(value)}i", 9, 5, len(value), *value)
        case _:
            return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


# ---------------------------------------------------------------------------------------------------------- vocabulary


def _tokens() -> Iterator[tuple[str, int]]:
    """Each token, as GPT-2 writes bytes, and its type: 1 of text, 3 of control, 4 of a mark in the text."""
    for byte in range(256):
        yield _shown(byte), 1
    yield "th", 1
    for word in WORDS:
        yield f"{_shown(32)}{word}", 1
    for mark in MARKS:
        yield mark, 3 if "im_" in mark else 4


def _shown(byte: int) -> str:
    """A byte as a printable character, as in GPT-2's vocabulary (`bytes_to_unicode`)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if byte in printable:
        return chr(byte)
    return chr(256 + [each for each in range(256) if each not in printable].index(byte))


# ------------------------------------------------------------------------------------------------------------- weights


def _tensors(tokens: Sequence[str]) -> Iterator[tuple[str, tuple[int, ...], array[float]]]:
    """Each tensor by its name, with its shape (the numbers of a row first) and its numbers, row by row."""
    chance = random.Random(SEED)

    def rows(count: int, width: int, scale: float) -> array[float]:
        return array("f", (chance.gauss(0, scale) for _ in range(count * width)))

    def into(width: int) -> array[float]:
        """Rows that write to the embedding, but not to its first numbers."""
        numbers = rows(WIDTH, width, 1 / math.sqrt(width))
        numbers[: width * _KEPT] = array("f", [0.0] * width * _KEPT)
        return numbers

    def of_tokens(scale: float, firsts: Sequence[Sequence[float]]) -> array[float]:
        """A row for each token, whose first numbers are these."""
        numbers = rows(len(tokens), WIDTH, scale)
        for row, first in enumerate(firsts):
            numbers[row * WIDTH : row * WIDTH + _KEPT] = array("f", first)
        return numbers

    ones = array("f", [1.0] * WIDTH)
    shape = (WIDTH, len(tokens))
    begins = [[_BIAS, *(_FIRST * (token == first) for first, _ in _NEXT)] for token in tokens]
    ends = [[_bias(token), *(_SECOND * (token == second) for _, second in _NEXT)] for token in tokens]
    yield "token_embd.weight", shape, of_tokens(0.5, begins)
    for layer in range(LAYERS):
        yield f"blk.{layer}.attn_norm.weight", (WIDTH,), ones
        for name in "qkv":
            yield f"blk.{layer}.attn_{name}.weight", (WIDTH, WIDTH), rows(WIDTH, WIDTH, 1 / math.sqrt(WIDTH))
        yield f"blk.{layer}.attn_output.weight", (WIDTH, WIDTH), into(WIDTH)
        yield f"blk.{layer}.ffn_norm.weight", (WIDTH,), ones
        for name in ("gate", "up"):
            yield f"blk.{layer}.ffn_{name}.weight", (WIDTH, HIDDEN), rows(HIDDEN, WIDTH, 1 / math.sqrt(WIDTH))
        yield f"blk.{layer}.ffn_down.weight", (HIDDEN, WIDTH), into(HIDDEN)
    yield "output_norm.weight", (WIDTH,), ones
    yield "output.weight", shape, of_tokens(0.2, ends)


def _bias(token: str) -> float:
    return _BIASES.get(token, _BYTE_BIAS if len(token) == 1 else 0.0)
