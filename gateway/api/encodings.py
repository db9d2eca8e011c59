"""The token encoding of each model.

The table follows tiktoken (model.py), by upstream model names; a fine-tuned model has the encoding of its base model.
Tokens of unknown names are estimated.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache

from gateway.config import Model, is_pattern

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
