"""Token counts by a real tokenizer: the package of the extra `tokens`, if it is installed.

The package is toktok-rs. Its tables are part of the package; it downloads nothing. It splits text as tiktoken does and
treats special tokens as ordinary text. Its time is linear in the length of the text: 3 to 15 us for a kilobyte of
prose, 0.6 ms for the worst kilobyte. Without the package, prompts are estimated (`api/prompt_tokens.py`).

Building one table takes 0.2 to 0.4 s and holds the interpreter lock, also in a thread. All tables are therefore built
at the start, before the first call, including those that only a later configuration needs: together about 110 MB.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.config import Model, ModelTable, is_pattern

from . import encodings
from .prompt_tokens import Counter, FindsCounter, no_counter

_MORE_THAN_ANY_TEXT = 1 << 40


class Counters:
    """The counters of the configured models, by the names that clients ask for: a `FindsCounter`."""

    def __init__(
        self, models: Mapping[str, Model], aliases: Mapping[str, str], by_encoding: Mapping[str, Counter]
    ) -> None:
        self._by_encoding = by_encoding
        self._models = ModelTable(models, aliases)
        self._configured = {name: self._look_up(name) for name in (*models, *aliases) if not is_pattern(name)}

    def __call__(self, model: str) -> Counter | None:
        return self._configured[model] if model in self._configured else self._look_up(model)

    def _look_up(self, name: str) -> Counter | None:
        found = self._models.find(name)
        encoding = None if found is None else encodings.of_model(found.model, found.name)
        return None if encoding is None else self._by_encoding.get(encoding)


def is_installed() -> bool:
    try:
        import toktok  # noqa: F401
    except ImportError:
        return False
    return True


def load(models: Mapping[str, Model], aliases: Mapping[str, str] = {}) -> FindsCounter:
    """Everything that is needed to count for these models, or for any others later. Takes up to 0.7 s, and only the
    first time."""
    if not is_installed():
        return no_counter
    return Counters(models, aliases, {encoding: _counter(encoding) for encoding in encodings.EVERY})


def describe(models: Mapping[str, Model]) -> str:
    """Describes for which models prompts are counted, as `gateway check` prints it. Loads no tables."""
    if not is_installed():
        return "estimated: the optional extra 'tokens' is not installed"
    counted = [name for name, settings in models.items() if encodings.needed({name: settings})]
    estimated = [name for name in models if name not in counted]
    parts = (("counted for", counted), ("estimated for", estimated))
    return "; ".join(f"{how} {', '.join(names)}" for how, names in parts if names)


def _counter(encoding: str) -> Counter:
    from toktok import truncate

    def count(text: str) -> int:
        total: int = truncate(text, _MORE_THAN_ANY_TEXT, encoding)[1]  # of the whole text; builds no list of tokens
        return total

    count("")  # builds its table
    return count
