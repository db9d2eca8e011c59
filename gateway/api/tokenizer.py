"""Token counts by a real tokenizer: the package of the extra `tokens`, if it is installed.

The package is toktok-rs. Its tables are part of the package; it downloads nothing. It splits text as tiktoken does and
treats special tokens as ordinary text. Its time is linear in the length of the text: 3 to 15 us for a kilobyte of
prose, 0.6 ms for the worst kilobyte. Without the package, prompts are estimated (`api/prompt_tokens.py`).

Building one table takes 0.2 to 0.4 s and holds the interpreter lock, also in a thread. All tables are therefore built
at the start, before the first call, including those that only a later configuration needs: together about 110 MB.

The token encoding of each model follows tiktoken (model.py), by upstream model names; a fine-tuned model has the
encoding of its base model. Tokens of unknown names are estimated.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache

from gateway.config import Model, ModelTable, is_pattern

from .prompt_tokens import Counter, FindsCounter, no_counter

CL100K = "cl100k_base"
O200K = "o200k_base"
EVERY = (CL100K, O200K)

# The first matching pattern applies.
_ENCODINGS: tuple[tuple[str, str], ...] = (
    ("gpt-5*", O200K),
    ("gpt-4o*", O200K),
    ("chatgpt-4o*", O200K),
    ("gpt-4.1*", O200K),
    ("gpt-4.5*", O200K),
    ("o1*", O200K),
    ("o3*", O200K),
    ("o4*", O200K),
    ("gpt-4", CL100K),
    ("gpt-4-*", CL100K),
    ("gpt-3.5-*", CL100K),
    ("gpt-35-*", CL100K),
    ("text-embedding-3-*", CL100K),
    ("text-embedding-ada-002", CL100K),
    ("davinci-002*", CL100K),
    ("babbage-002*", CL100K),
)


@lru_cache(maxsize=1024)
def of_name(name: str) -> str | None:
    """The encoding of the model with this name at the upstream."""
    plain = name.removeprefix("ft:")
    return next((encoding for pattern, encoding in _ENCODINGS if fnmatchcase(plain, pattern)), None)


def of_model(settings: Model, name: str) -> str | None:
    """The encoding of the model that is asked for by this name, if all of its routes have the same."""
    found = {of_name(route.model or name) for route in settings.routes}
    return found.pop() if len(found) == 1 else None


def needed(models: Mapping[str, Model]) -> frozenset[str]:
    """The encodings that calls for these models can need; a pattern may serve any name, so it can need all."""
    encodings: set[str | None] = {of_model(settings, name) for name, settings in models.items()}
    if any(is_pattern(name) and any(route.model is None for route in models[name].routes) for name in models):
        encodings.update(EVERY)
    return frozenset(encoding for encoding in encodings if encoding is not None)


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
        encoding = None if found is None else of_model(found.model, found.name)
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
    return Counters(models, aliases, {encoding: _counter(encoding) for encoding in EVERY})


def describe(models: Mapping[str, Model]) -> str:
    """Describes for which models prompts are counted, as `gateway check` prints it. Loads no tables."""
    if not is_installed():
        return "estimated: the optional extra 'tokens' is not installed"
    counted = [name for name, settings in models.items() if needed({name: settings})]
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
