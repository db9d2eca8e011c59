"""Counting of prompt tokens, with a simple tokeniser: one token per word."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.api import prompt_tokens, tokenizer
from gateway.api.prompt_tokens import MAX_COUNTED, MESSAGE_TOKENS, REPLY_TOKENS, Counter
from gateway.formats.table import read

from .params_table import body


def words(text: str) -> int:
    return len(text.split())


def finds(model: str) -> Counter | None:
    return words if model == "known" else None


def completion(model: str = "known", **changes: Any) -> tuple[int, int, bool]:
    """(prompts, tokens, whether the count is exact)"""
    found = read("completions", body("completions", model=model, **changes), finds)
    return found.prompts, found.prompt_tokens, found.is_prompt_exact


def chat(content: Any = "one two", model: str = "known", message: dict[str, Any] = {}, **changes: Any) -> int:  # noqa: B006
    """The tokens of one message, without those of the chat template."""
    messages = [{"role": "user", "content": content} | message]
    found = read("chat", body("chat", model=model, messages=messages, **changes), finds)
    assert not found.is_prompt_exact
    return found.prompt_tokens - MESSAGE_TOKENS - (REPLY_TOKENS if model == "known" else 0)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("one two three", (1, 3, True)),
        ("", (1, 0, True)),
        (["one two", "", "three"], (3, 3, True)),
        ("naïve café", (1, 2, False)),  # letters and symbols differ by Unicode version: not exact
        (["one", "zwei", "trois étoiles"], (3, 4, False)),
        ("one <|endoftext|>", (1, 2, False)),  # a special token for some upstreams, text for others
        (["one", "<|im_start|>"], (2, 2, False)),
        ([5, 6, 7], (1, 3, True)),
        ([[5], [6, 7]], (2, 3, True)),
        (None, (1, 1, False)),
    ],
)
def test_prompt_of_a_known_model_is_counted(prompt: Any, expected: tuple[int, int, bool]) -> None:
    assert completion(prompt=prompt) == expected


def test_suffix_is_counted_for_each_prompt_and_never_exact() -> None:
    """The API adds special tokens between prompt and suffix."""
    assert completion(prompt="one two", suffix="three") == (1, 3, False)
    assert completion(prompt=["one", "two three"], suffix="four five") == (2, 7, False)
    assert completion(prompt="one two", suffix="") == (1, 2, True)


def test_another_model_goes_by_the_rule() -> None:
    assert completion("mystery", prompt="one two three") == (1, 4, False)
    assert chat("one two three", "mystery") == 4


@pytest.mark.parametrize("given", ["one two three", ["one two", "three"]])
def test_embedded_text_is_counted(given: Any) -> None:
    found = read("embeddings", body("embeddings", model="known", input=given), finds)
    assert (found.prompt_tokens, found.is_prompt_exact) == (3, True)


CALL = {"name": "look_up", "arguments": "in the big book"}


@pytest.mark.parametrize(
    ("message", "tokens"),
    [
        ({"content": "one two"}, 2),
        ({"content": None}, 0),
        ({"content": "one two", "name": "ann"}, 2 + 1 + prompt_tokens.NAME_TOKENS),
        ({"content": None, "refusal": "not that"}, 2),
        ({"content": None, "tool_calls": [{"function": CALL}, {"custom": {"name": "f", "input": "a b"}}]}, 5 + 3),
        ({"content": None, "function_call": CALL}, 5),
        ({"content": [{"type": "text", "text": "one two"}, {"type": "text", "text": "three"}]}, 3),
        ({"content": [{"type": "text", "text": "one"}, {"type": "input_audio"}]}, 1 + prompt_tokens.AUDIO_TOKENS),
        ({"content": [{"type": "file", "file": {}}]}, prompt_tokens.FILE_TOKENS),
        ({"content": [{"type": "image_url", "image_url": "x"}]}, prompt_tokens.IMAGE_TOKENS),
    ],
)
def test_message_is_counted(message: dict[str, Any], tokens: int) -> None:
    assert chat(message=message) == tokens


def test_definitions_go_by_the_rule_all_the_same() -> None:
    tool = {"type": "function", "function": {"name": "f" * 400}}
    assert chat("one two", tools=[tool]) - 2 == chat("", "mystery", tools=[tool]) > 100


def test_every_message_counts_and_the_reply_once() -> None:
    messages = [{"role": "user", "content": "one two"}] * 3
    found = read("chat", body("chat", model="known", messages=messages), finds)
    assert found.prompt_tokens == 3 * (MESSAGE_TOKENS + 2) + REPLY_TOKENS


# ---------------------------------------------------------------------------------------- no longer than may be counted


def test_long_prompt_goes_by_the_rule() -> None:
    """The limit holds for the whole prompt, not for each of its parts."""
    longest = "word " * (MAX_COUNTED // 5) + "!" * (MAX_COUNTED % 5)
    assert completion(prompt=longest) == (1, words(longest), True)
    assert completion(prompt=longest + "!") == (1, -(-(MAX_COUNTED + 1) // 4), False)
    assert completion(prompt=[longest, "!"]) == (2, -(-(MAX_COUNTED + 1) // 4), False)
    assert completion(prompt=longest, suffix="!") == (1, -(-(MAX_COUNTED + 1) // 4), False)
    assert chat(longest) == words(longest)
    assert chat(longest + "!") == -(-(MAX_COUNTED + 1) // 4) - REPLY_TOKENS
    pieces = [{"type": "text", "text": "word "}] * (MAX_COUNTED // 5 + 1)
    assert chat(pieces) == -(-len(pieces) * 5 // 4) - REPLY_TOKENS


# ------------------------------------------------------------------------------------------------------------- pictures


@pytest.mark.parametrize(
    ("model", "low", "high"),
    [
        ("gpt-4o", 85, 765),
        ("gpt-4o-2024-08-06", 85, 765),
        ("gpt-4o-mini", 2833, 25501),
        ("gpt-4.1", 85, 765),
        ("gpt-4.1-mini", 1659, 1659),
        ("gpt-4.1-nano-2025-04-14", 2520, 2520),
        ("gpt-5", 70, 630),
        ("gpt-5-mini", 1659, 1659),
        ("gpt-5-nano", 2520, 2520),
        ("o1", 75, 675),
        ("o3", 75, 675),
        ("o4-mini", 1762, 1762),
        ("mystery", 85, 765),
    ],
)
def test_picture_costs_what_the_model_takes_for_it(model: str, low: int, high: int) -> None:
    for image, tokens in (
        ({"url": "data:" + "x" * 9999}, high),
        ({"url": "x", "detail": "high"}, high),
        ({"url": "x", "detail": "auto"}, high),
        ({"url": "x", "detail": "low"}, low),
        ("x", high),
    ):
        assert chat([{"type": "image_url", "image_url": image}], model) == tokens


# ------------------------------------------------------------------------------------------------------------ encodings


NAMES = {
    "o200k_base": """
        gpt-4o gpt-4o-mini gpt-4o-2024-08-06 chatgpt-4o-latest gpt-4.1 gpt-4.1-nano gpt-4.5-preview gpt-5 gpt-5.1
        gpt-5-mini o1 o1-mini o3 o3-mini o4-mini ft:gpt-4o-mini-2024-07-18:org::id
    """,
    "cl100k_base": """
        gpt-4 gpt-4-turbo gpt-4-0613 gpt-4-32k gpt-3.5-turbo gpt-3.5-turbo-instruct gpt-3.5-turbo-0125 gpt-35-turbo
        text-embedding-3-small text-embedding-3-large text-embedding-ada-002 davinci-002 babbage-002
        ft:gpt-3.5-turbo:org::id ft:davinci-002:org
    """,
    None: "gpt-4all gpt-oss-120b text-davinci-003 deepseek-reasoner llama-3 claude other GPT-4",
}


@pytest.mark.parametrize(("encoding", "names"), NAMES.items())
def test_models_are_cut_by_their_encodings(encoding: str | None, names: str) -> None:
    assert {name: tokenizer.of_name(name) for name in names.split()} == dict.fromkeys(names.split(), encoding)
