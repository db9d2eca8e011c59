"""The conversion of a whole file, in the order in which its sections need each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from gateway.config.faults import ConfigError, ConfigFault, printable
from gateway.config.price_table import Unpriced, table_of, with_table_prices
from gateway.config.references import read_text

from .access import convert_access
from .deployments import convert_models, unpriced
from .given import Converted, Given
from .proxy_settings import convert_settings

MAX_NAMED = 10
"""Models that a note names."""


def convert(text: str, file: str, now: datetime, read_file: Callable[[str], str] = read_text) -> Converted:
    """Convert a file of LiteLLM's proxy, with all that it includes. Raises `ConfigError` where it is no such file or
    nothing can be served."""
    given = Given(text, file, read_file)
    if not isinstance(given.values.get("model_list"), list):
        raise ConfigError([ConfigFault("model_list", "is not there: expected a configuration of LiteLLM's proxy")])
    table = table_of(None, now)

    def find_price(provider: str, model: str) -> Mapping[str, Any] | None:
        found = table.find(provider, model)
        return None if isinstance(found, Unpriced) else found

    convert_models(given, find_price)
    values = given.done.values
    if not values["models"]:
        given.note_the_rest()
        raise ConfigError([*given.done.notes, ConfigFault("model_list", "holds no model that can be converted")])
    defaults = {"models": convert_settings(given)}
    if keys := convert_access(given):
        defaults["keys"] = keys
    # The defaults come first: they are about every model.
    values["defaults"] = defaults
    values["models"] = values.pop("models")
    _note_unpriced(given, now)
    given.note_the_rest()
    return given.done


def _note_unpriced(given: Given, now: datetime) -> None:
    """Notes models without a price, because this gateway refuses them under a budget; LiteLLM serves them and counts
    nothing."""
    values = given.done.values
    if "quotas" not in values and "quotas" not in values["defaults"].get("keys", {}):
        return
    names = [printable(name) for name in unpriced(with_table_prices(values, now))]
    if names:
        more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
        given.note(
            ("litellm_settings", "max_budget"),
            f"calls of models without a price are refused under a budget, and LiteLLM does not count them: write "
            f"models.NAME.price for {', '.join(names[:MAX_NAMED])}{more}; zero where they cost nothing",
        )
