"""One completions call as several, each with a single prompt; and such a call as a chat.

A prompt becomes the one message of a user, and nothing is invented around it. So a chat model answers a prompt, where
a completions model would go on with it. An empty prompt and null, which ask for a text out of nothing, become an empty
message, and the upstream decides.

Parameters that both formats share are passed on, unknown parameters as well; the others are translated. Without
`max_tokens` a completion ends after 16 tokens, and a chat goes on: so the limit is always sent. Parameters without an
equivalent in chat are refused before (`api/capabilities.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gateway.api import large_body, prompt_tokens
from gateway.api.capabilities import Adaptation
from gateway.errors import UpstreamRefused
from gateway.formats.bridges import Adapted, Bridge
from gateway.formats.openai.completions import LIMIT_FIELDS
from gateway.quota import windows
from gateway.records import Call, Document, Endpoint, Params, Rewriting

_WITHOUT_CHAT = frozenset({"prompt", "best_of", "echo", "suffix", "logprobs", "max_tokens", "max_completion_tokens"})
"""Parameters of completions that have another form in a chat call, or ask for nothing by the time they come here."""

SPLIT = Rewriting("split", "")


class Split:
    """The calls that one call becomes. They are made one by one: a body of 2048 prompts must not be held twice."""

    def __init__(self, call: Call) -> None:
        self._call = call
        large = call.params.document.large
        self._large: SplitBody | None = None if large is None else large.rewritten[SPLIT]
        self._prompts = _prompts(call.params.document.members["prompt"]) if self._large is None else self._large.prompts
        self._common = {name: value for name, value in call.params.document.members.items() if name != "prompt"}
        self._written = _write(self._common)

    def __len__(self) -> int:
        return len(self._prompts)

    def call(self, number: int) -> Call:
        if self._large is not None:
            return self._call._replace(params=self._of_large(self._large, number))
        prompt, whole = self._prompts[number], self._call.params
        asked = whole._replace(document=_document("prompt", prompt, self._common, self._written), prompts=1)
        if len(self) > 1:
            tokens = prompt_tokens.prompts(prompt, self._common.get("suffix")).tokens
            asked = asked._replace(prompt_tokens=tokens)
        return self._call._replace(params=asked)

    def _of_large(self, split: SplitBody, number: int) -> Params:
        prompt = split.prompts[number]
        kept = "" if prompt.is_text else None if prompt.is_null else [0]
        document = large_body.with_first(split.common, "prompt", kept, prompt.written)
        assert document.large is not None
        content = [b'""'] if prompt.is_null else prompt.written
        messages = [b'[{"role":"user","content":', *content, b"}]"]
        as_chat = large_body.with_first(split.common_of_chat, "messages", [{}], messages)
        large = document.large._replace(rewritten={SPLIT: SinglePrompt(as_chat, prompt.characters)})
        asked = self._call.params._replace(document=document._replace(large=large), prompts=1)
        return asked._replace(prompt_tokens=prompt.tokens) if len(self) > 1 else asked


class LargePrompt(NamedTuple):
    """One prompt of a large body."""

    written: Sequence[memoryview]
    """JSON of the prompt, in pieces."""
    is_text: bool
    is_null: bool
    characters: int
    tokens: int


class SplitBody(NamedTuple):
    """A large body of several prompts."""

    prompts: Sequence[LargePrompt]
    common: Document
    """The members beside the prompts."""
    common_of_chat: Document
    """The same for a chat."""


class SinglePrompt(NamedTuple):
    """A call with one prompt of a large body."""

    as_chat: Document
    characters: int


def split(endpoint: Endpoint, members: Mapping[str, Any], detail: str) -> tuple[dict[str, Any], bytes]:
    """The facts for `split_of`, and a body with the members in common, those of a chat, and the prompts. For the
    process of large bodies."""
    prompts = _prompts(members["prompt"])
    texts = [json.dumps(prompt, separators=(",", ":")).encode() for prompt in prompts]
    common, plain = large_body.written({name: value for name, value in members.items() if name != "prompt"})
    common_of_chat, chat = large_body.written(_common_of_chat(members))
    facts = [
        (
            isinstance(prompt, str), prompt is None, len(prompt) if isinstance(prompt, str) else 0,
            prompt_tokens.prompts(prompt, members.get("suffix")).tokens,
        )
        for prompt in prompts
    ]  # fmt: skip
    lengths = [len(plain), len(chat), *map(len, texts)]
    known = {"common": common, "common_of_chat": common_of_chat, "prompts": facts, "lengths": lengths}
    return known, b"".join((plain, chat, *texts))


def split_of(known: Mapping[str, Any], pieces: Sequence[large_body.Piece]) -> SplitBody:
    """Restores the split body from the results of `split`."""
    plain, chat, *texts = large_body.cut(pieces, known["lengths"])
    prompts = [LargePrompt(text, *facts) for text, facts in zip(texts, known["prompts"], strict=True)]
    common, of_chat = known["common"], known["common_of_chat"]
    return SplitBody(prompts, large_body.from_written(common, plain), large_body.from_written(of_chat, chat))


def as_chat(call: Call) -> Call:
    """A call with a single prompt, which is text or null, as a chat."""
    members, large = call.params.document.members, call.params.document.large
    if large is None:
        common = _common_of_chat(members)
        messages = [{"role": "user", "content": members["prompt"] or ""}]
        document = _document("messages", messages, common, _write(common))
    else:
        document = large.rewritten[SPLIT].as_chat
    given = [members[name] for name in LIMIT_FIELDS if members.get(name) is not None]
    asked = call.params._replace(
        document=document,
        best_of=1,
        prompt_tokens=call.params.prompt_tokens + prompt_tokens.MESSAGE_TOKENS,
        output_limit=min(given, default=windows.output_limit(call)),
        is_output_limit_added=True,  # in the field that the upstream reads
    )
    return call._replace(endpoint="chat", params=asked)


def characters(call: Call) -> int:
    """Returns the length in characters of a call's single prompt, which precedes the first character of its completion;
    0 for tokens and null."""
    large = call.params.document.large
    if large is not None:
        single: SinglePrompt = large.rewritten[SPLIT]
        return single.characters
    prompt = call.params.document.members["prompt"]
    return len(prompt) if isinstance(prompt, str) else 0


def _common_of_chat(members: Mapping[str, Any]) -> dict[str, Any]:
    """The members of a completions call that a chat has too."""
    common = {name: value for name, value in members.items() if name not in _WITHOUT_CHAT}
    if members.get("logprobs") is not None:
        common |= {"logprobs": True, "top_logprobs": members["logprobs"]}
    return common


def _prompts(prompt: Any) -> Sequence[str | list[int] | None]:
    """The single prompts of a checked `prompt` in any of its forms."""
    return prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]


def _document(name: str, value: Any, common: Mapping[str, Any], written: str) -> Document:
    # The model's name is always among what they have in common, so something always follows.
    text = f'{{"{name}":{json.dumps(value, separators=(",", ":"))},{written}'
    return Document(text, {name: value, **common})


def _write(members: Mapping[str, Any]) -> str:
    """An object without the brace that opens it."""
    return json.dumps(members, separators=(",", ":"))[1:]


_MESSAGE_PATH = r"messages(?:\[\d+\](?:\.content(?:\[\d+\](?:\.text)?)?)?|\.\d+(?:\.content)?)"
_IN_QUOTES = re.compile(rf"(['\"`])(?:messages|{_MESSAGE_PATH})\1")
_BARE_PATH = re.compile(rf"\b{_MESSAGE_PATH}")
_IN_WORDS = re.compile(r"\b(the|your) messages\b")


def reword(refused: UpstreamRefused, members: Mapping[str, Any], prompt: int) -> UpstreamRefused:
    """The refusal of the chat call for the prompt with this number, for the client that sent these members."""
    path = f"prompt[{prompt}]" if isinstance(members.get("prompt"), list) else "prompt"
    names = {name: own for name, own in (("max_completion_tokens", "max_tokens"), ("top_logprobs", "logprobs"))
             if name not in members}  # fmt: skip
    message = _IN_QUOTES.sub(rf"\g<1>{path}\g<1>", refused.message)
    message = _IN_WORDS.sub(r"\1 prompt", _BARE_PATH.sub(path, message))
    for name, own in names.items():
        message = re.sub(rf"\b{name}\b", own, message)
    param = refused.param
    if param is not None:
        param = path if re.fullmatch(rf"messages|{_MESSAGE_PATH}", param) else names.get(param, param)
    return UpstreamRefused(refused.status, message, refused.type, param, refused.code)


ONE_BY_ONE = Bridge(Adaptation.ONE_BY_ONE, lambda call, *_: Adapted(call), SPLIT.kind, split, split_of)
VIA_CHAT = Bridge(Adaptation.VIA_CHAT, lambda call, *_: Adapted(as_chat(call)), SPLIT.kind, split, split_of)
