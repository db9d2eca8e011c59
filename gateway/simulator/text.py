"""Tokens, and readable text that follows from a key.

1. One token is `<|endoftext|>`, a word (letters, digits, underscores) or punctuation mark with the single space before
   it, or any other white space character. Joined, the tokens are the text.
2. Generated text consists of such tokens, so that counting it again gives the same number.
3. The text follows sentence patterns, chosen by the bytes of a SHAKE digest of the key. A limit only cuts it, so a
   short answer is the start of the long one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import blake2b, shake_128
from itertools import cycle
from zlib import crc32

END_OF_TEXT = "<|endoftext|>"

_TOKEN = re.compile(r" ?\w+|<\|endoftext\|>| ?[^\w\s]|\s")

_Slot = tuple[str, ...]


def _words(text: str) -> _Slot:
    return tuple(f" {word}" for word in text.split())


# No word begins with a vowel, so that each may follow "a".
_THE = _words("the a this that every one the the")
_KIND = _words("quiet small green bright patient warm long narrow gentle curious plain steady")
_THING = _words(
    "river garden lantern letter bridge harbour teacher window market sailor story baker forest train morning kettle "
    "road hill library boat"
)
_DOES = _words("carries follows finds remembers keeps paints watches mends greets crosses gathers leaves")
_STAYS = _words("waits sleeps turns shines wanders sings rests listens")
_NEAR = _words("beside behind near past under across beyond before")
_HOW = _words("slowly gladly often softly sometimes quietly")
_AND = _words("and while because but")
_COMMA: _Slot = (",",)

_PATTERNS: tuple[tuple[_Slot, ...], ...] = (
    (_THE, _KIND, _THING, _DOES, _THE, _THING, _NEAR, _THE, _THING),
    (_THE, _THING, _DOES, _THE, _KIND, _THING),
    (_HOW, _COMMA, _THE, _THING, _STAYS, _NEAR, _THE, _KIND, _THING),
    (_THE, _KIND, _THING, _STAYS, _AND, _THE, _THING, _DOES, _THE, _THING),
    (_THE, _THING, _NEAR, _THE, _THING, _STAYS, _HOW),
)
_LONGEST = max(map(len, _PATTERNS)) + 1

VOCABULARY: tuple[str, ...] = tuple(
    dict.fromkeys(_KIND + _THING + _DOES + _STAYS + _NEAR + _HOW + _AND + _words("the this that every one"))
)
"""Every word once, with its leading space: the words of token numbers, and the alternatives in log probabilities."""


def split_tokens(text: str) -> list[str]:
    """The tokens of a text, in order; joined they are the text."""
    return _TOKEN.findall(text)


def count_tokens(text: str) -> int:
    return len(_TOKEN.findall(text))


def token_text(number: int) -> str:
    """The word for a token number of a prompt."""
    return VOCABULARY[number % len(VOCABULARY)]


def key_of(*parts: object) -> bytes:
    """A key of 16 bytes from the parts that decide a text; different parts give different keys."""
    return blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def dice(key: bytes, size: int = 256) -> Iterator[int]:
    """Bytes that follow from the key, repeated after `size` of them."""
    return cycle(shake_128(key).digest(size))


def sentences(key: bytes, at_least: int) -> list[str]:
    """Tokens of whole sentences, as few as reach `at_least`. The first word too has a leading space."""
    rolls = dice(key, at_least + _LONGEST)  # a sentence takes one byte for its pattern and one for each word
    tokens: list[str] = []
    while len(tokens) < at_least:
        pattern = _PATTERNS[next(rolls) % len(_PATTERNS)]
        start = len(tokens)
        tokens += [slot[next(rolls) % len(slot)] for slot in pattern]
        tokens[start] = f" {tokens[start][1:].capitalize()}"
        tokens.append(".")
    return tokens


def write(key: bytes, length: int | None) -> list[str]:
    """An answer of `length` tokens, or of a natural length of whole sentences: about 20 to 60 tokens."""
    if length is None:
        return sentences(key, 20 + key[0] % 31)
    return sentences(key, length)[:length]


def reason(key: bytes) -> list[str]:
    """The reasoning of a model: one to three sentences."""
    return sentences(key_of(key, "reasoning"), 8 + key[1] % 9)


def logprob(token: str, position: int) -> float:
    """The log probability of a token at its position in the output: -2.00 to -0.01."""
    return -(1 + (crc32(token.encode("utf-8", "surrogatepass")) + 37 * position) % 200) / 100


def likeliest(token: str, position: int, count: int) -> list[tuple[str, float]]:
    """The `count` likeliest tokens at a position with their log probabilities, the generated token first."""
    first = logprob(token, position)
    found = [(token, first)]
    start = crc32(token.encode("utf-8", "surrogatepass")) + position
    for step in range(count):
        if len(found) >= count:
            break
        other = token_text(start + step)
        if other != token:
            found.append((other, round(first - len(found) / 2, 2)))
    return found
