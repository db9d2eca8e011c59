"""Tokens, and pleasant text that follows from a key.

The token rule: `<|endoftext|>` is one token, and so is a word (letters, digits, underscores) with the one space before
it, a punctuation mark with the one space before it, and any other white space character. Tokens lose nothing: joined
they are the text again. Generated text is made of such tokens, so counting the text again gives the same number.

Text is a walk through sentence patterns, steered by the bytes of a SHAKE digest of the key. The key decides everything;
a limit only cuts, so a short answer is the beginning of the long one.
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


# No word here begins with a vowel, so that every one of them may follow "a".
_THE = _words("the a this that every one the the")
_KIND = _words("quiet small green bright patient warm long narrow gentle curious plain steady")
_THING = _words(
    "river garden lantern letter bridge harbour teacher window market sailor story baker forest train morning kettle "
    "road hill library boat"
)
_DOES = _words("carries follows finds remembers keeps paints watches mends greets crosses gathers leaves")
_RESTS = _words("waits sleeps turns shines wanders sings rests listens")
_NEAR = _words("beside behind near past under across beyond before")
_HOW = _words("slowly gladly often softly sometimes quietly")
_AND = _words("and while because but")
_COMMA: _Slot = (",",)

_PATTERNS: tuple[tuple[_Slot, ...], ...] = (
    (_THE, _KIND, _THING, _DOES, _THE, _THING, _NEAR, _THE, _THING),
    (_THE, _THING, _DOES, _THE, _KIND, _THING),
    (_HOW, _COMMA, _THE, _THING, _RESTS, _NEAR, _THE, _KIND, _THING),
    (_THE, _KIND, _THING, _RESTS, _AND, _THE, _THING, _DOES, _THE, _THING),
    (_THE, _THING, _NEAR, _THE, _THING, _RESTS, _HOW),
)
_LONGEST = max(map(len, _PATTERNS)) + 1

VOCABULARY: tuple[str, ...] = tuple(
    dict.fromkeys(_KIND + _THING + _DOES + _RESTS + _NEAR + _HOW + _AND + _words("the this that every one"))
)
"""Every word with its leading space, each once: what token numbers stand for, and what might have been said instead."""


def split_tokens(text: str) -> list[str]:
    """The tokens of a text, in order; joined they are the text."""
    return _TOKEN.findall(text)


def count_tokens(text: str) -> int:
    """How many tokens a text has."""
    return len(_TOKEN.findall(text))


def token_text(number: int) -> str:
    """The word that a token number of a prompt stands for."""
    return VOCABULARY[number % len(VOCABULARY)]


def key_of(*parts: object) -> bytes:
    """A key of 16 bytes from whatever decides a text; the parts are told apart however they are written."""
    return blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def dice(key: bytes, size: int = 256) -> Iterator[int]:
    """Bytes that follow from the key, again from the start after `size` of them."""
    return cycle(shake_128(key).digest(size))


def sentences(key: bytes, at_least: int) -> list[str]:
    """Tokens of whole sentences: as few as make `at_least`. The first has its leading space like every other word."""
    rolls = dice(key, at_least + _LONGEST)  # a sentence takes one byte for its pattern and one for each word
    tokens: list[str] = []
    while len(tokens) < at_least:
        pattern = _PATTERNS[next(rolls) % len(_PATTERNS)]
        start = len(tokens)
        tokens += [slot[next(rolls) % len(slot)] for slot in pattern]
        tokens[start] = f" {tokens[start][1:].capitalize()}"
        tokens.append(".")
    return tokens


def speak(key: bytes, length: int | None) -> list[str]:
    """An answer of `length` tokens, or of a natural length of whole sentences: about 20 to 60 tokens."""
    if length is None:
        return sentences(key, 20 + key[0] % 31)
    return sentences(key, length)[:length]


def think(key: bytes) -> list[str]:
    """What a reasoning model says to itself first: one to three sentences."""
    return sentences(key_of(key, "reasoning"), 8 + key[1] % 9)


def logprob(token: str, position: int) -> float:
    """The log probability of a token at its place in the output: -2.00 to -0.01."""
    return -(1 + (crc32(token.encode("utf-8", "surrogatepass")) + 37 * position) % 200) / 100


def likeliest(token: str, position: int, count: int) -> list[tuple[str, float]]:
    """The `count` likeliest tokens at a place, with their log probabilities; the one that was said leads."""
    said = logprob(token, position)
    found = [(token, said)]
    start = crc32(token.encode("utf-8", "surrogatepass")) + position
    for step in range(count):
        if len(found) >= count:
            break
        other = token_text(start + step)
        if other != token:
            found.append((other, round(said - len(found) / 2, 2)))
    return found
