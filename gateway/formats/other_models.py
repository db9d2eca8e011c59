"""Models that a body names beside `model`: of its tools, its fallbacks or its moderation.

Each has to be one that the key may use, and one that the same upstream serves, whose name for it goes up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from gateway.config import Route
from gateway.records import Call, Params

ANY_MODEL = "*"
"""Among the models of a request: the upstream chooses."""


def entries(members: Mapping[str, Any], name: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The objects in a list of this name, each with its index; an object in place of a list has index 0."""
    given = members.get(name)
    listed: Sequence[Any] = given if isinstance(given, list) else [given]
    for index, entry in enumerate(listed):
        if isinstance(entry, dict):
            yield index, entry


def changes(call: Call, route: Route, names: Sequence[str]) -> dict[str, Any]:
    """Those of these members that name a further model of the call, with the model's name at the route's upstream."""
    renamed: dict[str, str] = {}
    for name, model in call.other_models:
        there = next((each.model for each in model.routes if each.upstream == route.upstream), None)
        if there is not None and there != name:
            renamed[name] = there
    members, changed = call.params.document.members, {}
    for name in names if renamed else ():
        if any(entry.get("model") in renamed for _, entry in entries(members, name)):
            changed[name] = _renamed(members[name], renamed)
    return changed


def keeping(*names: str) -> Callable[[Params], Collection[str]]:
    """These members, of a request that names a further model."""
    return lambda params: names if params.other_models else ()


def _renamed(given: Any, names: Mapping[str, str]) -> Any:
    if isinstance(given, list):
        return [_renamed(each, names) for each in given]
    if isinstance(given, dict) and given.get("model") in names:
        return given | {"model": names[given["model"]]}
    return given
