"""Models that a body names beside `model`: of its tools, its fallbacks or its moderation, and those among which a
router behind the upstream may choose.

Each has to be one that the key may use, and one that the same upstream serves, whose name for it goes up. Routers take
them as `models` (OpenRouter, "Model routing", and Vercel's AI Gateway, "Model fallbacks", which has them in
`providerOptions.gateway` as well) and as `fallbacks` (LiteLLM, "Client-side fallbacks", whose router has two further
names, and settings of its own in `user_config` and `router_settings_override`: `proxy/route_llm_request.py`); both
charge for the model that served.

Three forms are refused: LiteLLM writes the members of `extra_body` over those of the body (BerriAI/litellm#31118), and
OpenRouter's `fusion`, advisor and subagent, as plugins or tools, run models of their own, which are billed beside the
one that answers (openrouter.ai/docs, "Fusion").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from gateway.config import Route
from gateway.errors import InvalidRequest
from gateway.records import Call, Params
from gateway.spelling import folded, outer

ANY_MODEL = "*"
"""Among the models of a request: the upstream chooses."""

LISTS = ("models", "fallbacks")
"""Members with names for a router; other forms of them are refused."""
MOST = 16
_MEANT = re.compile(r"models|fallbackmodels?|\w*fallbacks?|userconfig|routersettingsoverride")
_RUNS_MODELS = frozenset({"fusion", "openrouterfusion", "openrouteradvisor", "openroutersubagent"})
"""Plugins and tools that run further models, also where they name none."""
_NAMES_MODELS = re.compile(r"(?!allowed|excluded)\w*models?")
_OF_CLIENTS = (None, "function", "custom", "tool_search", "mcp")
"""Types of tools that the client runs, or a server that it names: their parameters, schemas and headers are its own."""


def entries(members: Mapping[str, Any], name: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The objects in a list of this name, each with its index; an object in place of a list has index 0."""
    given = members.get(name)
    listed: Sequence[Any] = given if isinstance(given, list) else [given]
    for index, entry in enumerate(listed):
        if isinstance(entry, dict):
            yield index, entry


def for_routers(members: Mapping[str, Any], known: frozenset[str] = frozenset()) -> list[str]:
    """The models that a body names for a router; the format reads the members `known`. Raises `InvalidRequest`."""
    found: list[str] = []
    refuse_in_tools(members.get("tools"))
    for given in [name for name in members if name not in known]:
        value, meant = members[given], folded(outer(given))
        if meant == "provideroptions" and _has(value, "gateway", "models"):
            raise _refused(f"{given}.gateway.models")
        if meant == "plugins":
            refuse_in_tools(value, given)
        if meant == "extrabody" and isinstance(value, dict):
            _refuse_in_extra(value, given, known)
        if _MEANT.fullmatch(meant) is None or not value or not isinstance(value, str | list | dict):
            continue
        is_list = given in LISTS and isinstance(value, list) and len(value) <= MOST
        if not is_list or not all(isinstance(each, str) and each for each in value):
            raise _refused(given)
        found += value
    return found


def refuse_in_tools(given: Any, name: str = "tools", *, is_model_read: bool = True) -> None:
    """Raises `InvalidRequest` for a plugin, or a tool of the upstream's own, that runs further models.
    `is_model_read`: the format reads the `model` of a tool itself."""
    for place, each in enumerate(given if isinstance(given, list) else [given]):
        if not isinstance(each, dict) or (name == "tools" and each.get("type") in _OF_CLIENTS):
            continue
        kinds = {folded(kind) for kind in (each.get("type"), each.get("id")) if isinstance(kind, str)}
        inside = each.get("parameters") if name == "tools" and is_model_read else each
        if not _RUNS_MODELS.isdisjoint(kinds) or _names_a_model(inside):
            raise _refused(f"{name}[{place}]")


def _names_a_model(given: Any) -> bool:
    waiting = [given]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if any(each and _NAMES_MODELS.fullmatch(folded(name)) for name, each in value.items()):
                return True
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return False


def _refuse_in_extra(given: Mapping[str, Any], name: str, known: frozenset[str]) -> None:
    """Raises `InvalidRequest` for a member that would replace one that the gateway reads."""
    read = {"model", *map(folded, known)}
    if over := [each[:64] for each in given if folded(outer(each)) in read]:
        text = f"Unsupported parameter: '{name}.{over[0]}'. Send it as '{over[0]}' itself."
        raise InvalidRequest(text, param=name, code="unsupported_parameter")
    if for_routers(given, known):
        raise _refused(name)


def refuse_for_routers(members: Mapping[str, Any]) -> None:
    """Raises `InvalidRequest` for a member or a field that names models for a router."""
    if for_routers(members):
        raise _refused(LISTS[0])


def may_choose(members: Mapping[str, Any]) -> bool:
    """Whether a checked body lets a router choose among models."""
    return any(isinstance(members.get(name), list) and members[name] for name in LISTS)


def changes(call: Call, route: Route, names: Sequence[str] = ()) -> dict[str, Any]:
    """Those of these members, and of those for routers, that name a further model of the call, with the model's name at
    the route's upstream."""
    renamed: dict[str, str] = {}
    for name, model in call.other_models:
        there = next((each.model for each in model.routes if each.upstream == route.upstream), None)
        if there is not None and there != name:
            renamed[name] = there
    members, changed = call.params.document.members, {}
    for name in (*LISTS, *names) if renamed else ():
        if (given := members.get(name)) and (after := _renamed(given, renamed)) != given:
            changed[name] = after
    return changed


def keeping(*names: str) -> Callable[[Params], Collection[str]]:
    """These members, of a request that names a further model."""
    return lambda params: names if params.other_models else ()


def _renamed(given: Any, names: Mapping[str, str]) -> Any:
    if isinstance(given, list):
        return [names.get(each, each) if isinstance(each, str) else _renamed(each, names) for each in given]
    if isinstance(given, dict) and given.get("model") in names:
        return given | {"model": names[given["model"]]}
    return given


def _has(value: Any, *path: str) -> bool:
    """Whether there is something at this path, in any spelling of its names."""
    if not path or not isinstance(value, dict):
        return not path and bool(value)
    return any(_has(below, *path[1:]) for name, below in value.items() if folded(name) == path[0])


def _refused(param: str) -> InvalidRequest:
    return InvalidRequest(
        f"Unsupported parameter: '{param}' names or runs further models in a form that the gateway does not check. "
        f"Leave it out; further models for a router are at most {MOST} names in a list '{LISTS[0]}'.",
        param=param, code="unsupported_parameter",
    )  # fmt: skip
