"""A prefix cache for chats, as an inference server has one: what an earlier prompt began with costs less.

A prompt is its tools and messages in order, cut into blocks of `BLOCK_TOKENS`; the hash of a block covers all blocks
before it (vLLM, "Automatic Prefix Caching"). Cached are the leading blocks that are known, if they are at least
`LEAST_TOKENS` (OpenAI, "Prompt caching": from 1024 tokens, in steps of 128). The least recently used blocks leave a
full cache. Each API key has blocks of its own, as organisations at OpenAI have.
"""

from __future__ import annotations

from collections import OrderedDict

from .choices import compact
from .requests import ChatRequest
from .text import key_of, split_tokens

BLOCK_TOKENS = 128
LEAST_TOKENS = 1024


class PrefixCache:
    """A limited number of blocks; 0: nothing is ever cached."""

    def __init__(self, blocks: int) -> None:
        self._blocks = blocks
        self._known: OrderedDict[bytes, None] = OrderedDict()

    def take(self, request: ChatRequest, owner: str, prompt_tokens: int) -> int:
        """How many of the prompt's tokens are cached; all of its blocks are from now on."""
        if not self._blocks:
            return 0
        key, cached, is_leading = key_of(request.model, owner), 0, True
        parts = [*(request.tools or []), *request.messages]
        tokens = [token for part in parts for token in split_tokens(compact(part))]
        for start in range(0, len(tokens) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
            key = key_of(key, tokens[start : start + BLOCK_TOKENS])
            is_leading = is_leading and key in self._known
            cached += BLOCK_TOKENS if is_leading else 0
            self._known[key] = None
            self._known.move_to_end(key)
        while len(self._known) > self._blocks:
            self._known.popitem(last=False)
        # The JSON around a message is in no count of prompt tokens.
        cached = min(cached, prompt_tokens // BLOCK_TOKENS * BLOCK_TOKENS)
        return cached if cached >= LEAST_TOKENS else 0
