"""The events that a reader makes of an answer, whole or streamed, in the order in which it was generated.

A reader of a vendor's format (`reader.py` in its package) takes the answer's JSON object by object. Translations are
made of these events and of nothing else; usage, errors and ends are facts of the reader itself (`reader.Reader`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .tool_calls import CollectedCall

End = str
"""Why an answer ended, in the words of chat: `stop`, `length`, `tool_calls`, `content_filter`."""


class Text(NamedTuple):
    """A piece of the text."""

    text: str
    logprobs: Sequence[Mapping[str, Any]] = ()
    """Of its tokens, as chat writes them."""
    annotations: Sequence[Mapping[str, Any]] = ()
    """Citations, as chat writes them; they may come without text."""


class Thought(NamedTuple):
    """A piece of the model's reasoning."""

    text: str


class KeptThought(NamedTuple):
    """A whole block of reasoning with its signature, which a client may send back (Anthropic, "Extended thinking")."""

    block: Mapping[str, Any]


class Refusal(NamedTuple):
    """A piece of the text with which the model refuses."""

    text: str


class CallPiece(NamedTuple):
    """A piece of the arguments of a tool call; the first one of a call may be empty."""

    call: CollectedCall
    arguments: str


class ServedTier(NamedTuple):
    """The service tier that serves, in the upstream's words."""

    name: str


class Ended(NamedTuple):
    """The model has stopped. Further events may follow: the end of the stream is the end."""

    reason: End
    stop_sequence: str | None = None
    """The stop sequence that ended it, where the upstream names it."""


Event = Text | Thought | KeptThought | Refusal | CallPiece | ServedTier | Ended
