"""The section `defaults`: settings that models of the file, and keys that are made at run time, have by default."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from .sections import Config, ModelSettings


def with_model_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values, with the settings of `defaults.models` in each model that does not have them.

    A setting counts as a whole: a model's own `price` or `limits` replaces the default one, and null takes it away.
    Defaults with faults are left out; their faults are reported once, in their own place.
    """
    values = dict(values)
    defaults, models = values.get("defaults"), values.get("models")
    given = defaults.get("models") if isinstance(defaults, dict) else None
    if not isinstance(given, dict) or not isinstance(models, dict) or not _is_sound(given):
        return values
    values["models"] = {
        name: {**given, **model} if isinstance(model, dict) else model for name, model in models.items()
    }
    return values


def _is_sound(given: Mapping[str, Any]) -> bool:
    try:
        ModelSettings.model_validate(given)
    except ValidationError:
        return False
    return True


def with_key_defaults(body: Mapping[str, Any], config: Config, now: float) -> dict[str, Any]:
    """The settings of a new key, with those of `defaults.keys` that it does not name. `now` is a Unix time."""
    defaults = config.defaults.keys
    added = defaults.model_dump(mode="json", exclude_unset=True)
    if (seconds := added.pop("expires_after_s", None)) is not None:
        added["expires"] = datetime.fromtimestamp(int(now + seconds), UTC).isoformat()
    added["quotas"] = [
        {name: value for name, value in quota.model_dump().items() if value is not None} for quota in defaults.quotas
    ]
    return {**added, **body}
