"""Units of use other than prompt and completion tokens, as counts by name.

Counts are kept as a tuple of pairs in the order of `UNITS`, without zeros, so that most calls have the empty one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

Counts = tuple[tuple[str, int], ...]
"""Names of `UNITS`, each with its count; a record of a newer gateway may hold names that are not there."""


class Unit(NamedTuple):
    """A unit that is counted."""

    what: str
    part_of: str | None = None
    """`prompt`, `completion` or `cached` (of the prompt, from a cache) if its tokens have these among them; None: they
    are counted separately."""


UNITS: Mapping[str, Unit] = {
    # OpenAI keeps them for 30 minutes, Anthropic for 5.
    "cache_write": Unit("Prompt tokens written to the upstream's cache.", "prompt"),
    # Anthropic keeps them for an hour, OpenAI for 12.
    "cache_write_1h": Unit("Prompt tokens written to the upstream's cache for an hour or longer.", "prompt"),
    # Each search of a hosted tool.
    "web_searches": Unit("Web searches made by the upstream."),
    # Google Maps: a prompt that is answered with it.
    "maps_searches": Unit("Prompts that the upstream answered with a map."),
    # xAI's live search.
    "search_sources": Unit("Sources that the upstream's search used."),
    # Paid tools of other kinds: searches of X, tools that Groq runs.
    "tool_calls": Unit("Calls of paid tools that the upstream ran."),
    "file_searches": Unit("Searches in stored files made by the upstream."),
    # OpenAI's code interpreter and shell.
    "containers": Unit("Containers started by the upstream."),
    "audio_in": Unit("Audio tokens of the prompt.", "prompt"),
    "audio_out": Unit("Audio tokens of the completion.", "completion"),
    "image_in": Unit("Image tokens of the prompt.", "prompt"),
    "video_in": Unit("Video tokens of the prompt.", "prompt"),
    "image_out": Unit("Image tokens of the completion.", "completion"),
    "video_out": Unit("Video tokens of the completion.", "completion"),
    # Of cached tokens; `audio_in` and `image_in` do not have them.
    "cached_audio": Unit("Audio tokens of the prompt from the upstream's cache.", "cached"),
    "cached_image": Unit("Image tokens of the prompt from the upstream's cache.", "cached"),
    # Perplexity's deep research.
    "citations": Unit("Citation tokens of the completion.", "completion"),
    # Speech from text.
    "characters": Unit("Characters of a text that was spoken."),
    # Transcription; whole milliseconds, because seconds come with fractions.
    "audio_ms": Unit("Milliseconds of audio."),
    "images": Unit("Images generated."),
    # OpenAI's image generation inside a response: another model, whose tokens are in neither prompt nor completion.
    "image_tool_in": Unit("Prompt tokens of the image tool, beside the prompt."),
    "image_tool_out": Unit("Output tokens of the image tool, beside the completion."),
    # Cohere's rerank.
    "search_units": Unit("Search units of a rerank."),
    "calls": Unit("Calls with a price of their own."),
    # Rows of `passthrough`.
    "tasks": Unit("Tasks."),
    "seconds": Unit("Seconds of a video or a sound that a task makes."),
}

BESIDE = frozenset([name for name, unit in UNITS.items() if unit.part_of is None])

ALL = 2**53
"""More than any count: with `within`, all tokens of the prompt or of the completion."""

_ORDER = {name: place for place, name in enumerate(UNITS)}


def counts(of: Mapping[str, int]) -> Counts:
    """These counts in the stored form."""
    return tuple([(name, of[name]) for name in sorted(of, key=_place) if of[name]])


def total(parts: Iterable[Counts]) -> Counts:
    given = [part for part in parts if part]
    if len(given) <= 1:
        return given[0] if given else ()
    sums: dict[str, int] = {}
    for part in given:
        for name, count in part:
            sums[name] = sums.get(name, 0) + count
    return counts(sums)


def highest(one: Counts, other: Counts) -> Counts:
    if not one or not other:
        return one or other
    found = dict(one)
    for name, count in other:
        found[name] = max(count, found.get(name, 0))
    return counts(found)


def within(of: Counts, prompt: int, completion: int) -> Counts:
    """The counts, each limited to the whole that includes it. `prompt` and `completion` are tokens."""
    wholes = {"prompt": prompt, "cached": prompt, "completion": completion}
    limits = {name: wholes[unit.part_of] for name, unit in UNITS.items() if unit.part_of is not None}
    return counts({name: min(count, limits.get(name, count)) for name, count in of})


def format_counts(of: Counts) -> str:
    """The text form of records: `cache_write=100 web_searches=2`."""
    return " ".join([f"{name}={count}" for name, count in of])


def read(text: str) -> Counts:
    """The counts that `format_counts` wrote. Raises `ValueError`."""
    found = []
    for each in text.split():
        name, _, count = each.partition("=")
        if not (name and count.isdecimal()):
            raise ValueError(f"not a count of a unit: {each!r}")
        found.append((name, int(count)))
    return tuple(found)


def _place(name: str) -> tuple[int, str]:
    return _ORDER.get(name, len(_ORDER)), name
