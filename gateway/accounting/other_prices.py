"""Which prices the parts of a usage have that another model than the call's has run.

An answer names the models as the upstream calls them, often with the date of a version (`claude-haiku-4-5-20251001`). A
request names them as the gateway does. A model that the request does not name, because the upstream chose it, has no
price that is known here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gateway.config import Model, Price, Route
from gateway.records import Call, Usage

_VERSION = re.compile(r"(?:[-@](?:\d{8}|latest)|-\d{4}-\d\d-\d\d)?")
"""What stands behind a model's name in the name of a version of it."""


def other_prices(call: Call, route: Route | None, usage: Usage) -> dict[str, Price | None]:
    """The prices of the models that parts of the usage name, by these names; a model that is not found is left out, and
    a found one without a price has None."""
    found = {}
    for name in {part.model for part in usage.parts if part.model}:
        for known, model in _known(call, route):
            if name.startswith(known) and _VERSION.fullmatch(name, len(known)):
                found[name] = model.price
                break
    return found


def _known(call: Call, route: Route | None) -> Iterator[tuple[str, Model]]:
    """The call's own model and the further ones of its request, by their names here and at the route's upstream."""
    for name, model in ((call.model_name, call.model), *call.other_models):
        yield name, model
        for each in model.routes:
            if each.model is not None and (route is None or each.upstream == route.upstream):
                yield each.model, model
