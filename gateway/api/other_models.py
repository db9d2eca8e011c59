"""Models that a body names beside `model`: of its tools, its fallbacks or its moderation, and those among which a
router behind the upstream may choose.

Each has to be one that the key may use, and one that the same upstream serves, whose name for it goes up. Routers take
them as `models` (OpenRouter, "Model routing", and Vercel's AI Gateway, "Model fallbacks", which has them in
`providerOptions.gateway` as well) and as `fallbacks` (LiteLLM, "Client-side fallbacks", whose router has two further
names, and settings of its own in `user_config` and `router_settings_override`: `proxy/route_llm_request.py`); both
charge for the model that served.

Other forms are refused: LiteLLM writes the members of `extra_body` over those of the body (BerriAI/litellm#31118).
`refuse_unread` looks for names of models wherever no format reads them: Groq's `compound_custom.models` (Groq, API
reference), Microsoft's `data_sources` with an `embedding_dependency` (Microsoft, "On Your Data"), `svg` of images
(openai-python, image_generate_params.py), tools that a message adds (anthropic-sdk,
BetaRequestToolAdditionBlockParam), `routingConfig` of Gemini (google-genai, types.py).

Plugins and tools that a router runs itself are accepted only where they cost nothing or the answer reports them.
OpenRouter's `fusion`, advisor, subagent and image generation run models of their own, and its shell, its pages fetched
by Exa and PDFs read by `mistral-ocr` are billed beside the tokens (openrouter.ai/docs, "Server Tools", "PDF Inputs").
Orq's tools have the same form of names (docs.orq.ai, "Server tools").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from gateway.config import Route
from gateway.errors import InvalidRequest
from gateway.records import Call, Params
from gateway.spelling import folded, outer

from . import validation_errors

ANY_MODEL = "*"
"""Among the models of a request: the upstream chooses."""

LISTS = ("models", "fallbacks")
"""Members with names for a router; other forms of them are refused."""
MOST = 16
_MEANT = re.compile(
    r"models|fallbackmodels?|\w*fallbacks?(?:dict)?|userconfig|routersettingsoverride|lora(?:path)?|adapter(?:id|source)"
)
_RUN_BY_ROUTER = re.compile(r"\s*(?:[\w-]+\s*:|openrouter)\s*(.*)", re.ASCII | re.IGNORECASE | re.DOTALL)
"""Types of tools that a router runs; the group is the kind."""
_TOOLS_OF_ROUTERS = frozenset({"websearch", "datetime", "applypatch"})
"""Those that cost nothing or are reported; `webfetch` costs nothing where `_FETCHES_FREELY` fetches the pages."""
_FETCHES_FREELY = "openrouter"
_PLUGINS = frozenset({"web", "fileparser", "responsehealing", "autorouter", "contextcompression"})
_FREE_PARSERS = (None, "native", "cloudflare-ai", "pdf-text")
_NAMES_MODELS = re.compile(
    r"(?!allowed|excluded)\w*(?:model|deployment)(?:s|ids?|names?)?|routingconfig|modelselection\w*|modelrouting\w*"
)
_OF_CALLERS = re.compile(
    r"\w*(?:metadata|schema|usage|examples?)|properties|configs|function\w*|variables|attributes|headers|labels|arg(?:ument)?s|env\w*"
    r"|documents?|grammar|structuredoutputs?|guided\w*|trace|extrabody"
)
"""Members inside of which names are the caller's own; `extra_body` is read as a body."""
_CONTENT = frozenset({
    "messages", "input", "contents", "content", "prompt", "system", "instructions", "systeminstruction", "requests",
})  # fmt: skip
"""Members in which tools alone are settings: all else is content."""
NAMES = re.compile(rb'model[^"]{0,32}"\s*:')
"""Names of members for a model, in a body in small letters."""
TOOLS = re.compile(rb'"tools?"\s*:')
"""Names of members with tools, in such a body."""
ESCAPED = re.compile(rb"\\u00(?:[46][1-9a-f]|[57][0-9a])")
"""An escape in JSON of a letter of ASCII, which a name of a member may have."""
_OF_CLIENTS = (None, "function", "custom", "tool_search", "mcp")
"""Types of tools that the client runs, or a server that it names: their parameters, schemas and headers are its own."""


def entries(members: Mapping[str, Any], name: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The objects in a list of this name, each with its index; an object in place of a list has index 0."""
    given = members.get(name)
    listed: Sequence[Any] = given if isinstance(given, list) else [given]
    for index, entry in enumerate(listed):
        if isinstance(entry, dict):
            yield index, entry


def named(members: Mapping[str, Any], names: Collection[str]) -> tuple[str, ...]:
    """The models that these members name: hosted tools (`image_generation`), a moderation. Raises `InvalidRequest`."""
    found = dict[str, None]()
    for name in names:
        for index, entry in entries(members, name):
            model = entry.get("model")
            if model is None:
                continue
            if not isinstance(model, str) or not model:
                place = f"{name}[{index}].model" if isinstance(members[name], list) else f"{name}.model"
                raise validation_errors.wrong_value(place, "It has to be the name of a model.")
            found[model] = None
    return tuple(found)


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


def refuse_in_tools(given: Any, name: str = "tools") -> None:
    """Raises `InvalidRequest` for a plugin or a tool that a router runs for money that no answer reports."""
    is_paid = _is_paid_tool if name == "tools" else _is_paid_plugin
    for place, each in enumerate(given if isinstance(given, list) else [given]):
        if isinstance(each, dict) and is_paid(each):
            raise _refused_as_paid(f"{name}[{place}]")


def refuse_unread(
    members: Mapping[str, Any],
    known: Collection[str] = (),
    read: Collection[str] = (),
    *,
    has_tools_inside: bool = True,
) -> None:
    """Raises `InvalidRequest` for a name of a model that no format reads, at any depth of the settings of a body.
    `known`: the members of the schema; `read`: those of which a format reads the `model` itself; `has_tools_inside`:
    whether the content may bring tools, for which it is searched."""
    for name, value in members.items():
        meant = folded(name)
        if _OF_CALLERS.fullmatch(meant) is not None or meant in ("model", *LISTS):
            continue
        if name not in known and _is_name_of_model(meant, value):
            raise _refused(name)
        is_setting = meant not in _CONTENT
        if not (is_setting or has_tools_inside):
            continue
        entries_read = entries(members, name) if name in read else ()
        _refuse_inside(name, value, is_setting, {id(each) for _, each in entries_read})


_TOOLS = ("tool", "tools")


def _is_name_of_model(meant: str, value: Any) -> bool:
    return bool(value) and isinstance(value, str | list | dict) and _NAMES_MODELS.fullmatch(meant) is not None


def _refuse_inside(param: str, value: Any, is_setting: bool, read: Collection[int]) -> None:
    waiting = [(value, is_setting, folded(param) in _TOOLS)]
    while waiting:
        value, is_setting, is_tool = waiting.pop()
        if isinstance(value, list):
            waiting += [(each, is_setting, is_tool) for each in value if isinstance(each, dict | list)]
            continue
        if not isinstance(value, dict):
            continue
        if is_tool and _is_paid_tool(value):
            raise _refused_as_paid(param)
        own = _arguments_of(value, is_tool=is_tool)
        for name, below in value.items():
            meant = folded(name)
            if name == own or _OF_CALLERS.fullmatch(meant) is not None:
                continue
            is_read = name == "model" and id(value) in read
            if is_setting and not is_read and _is_name_of_model(meant, below):
                raise _refused(param)
            if isinstance(below, dict | list):
                is_of_tool = is_tool or meant in _TOOLS
                waiting.append((below, is_setting or is_of_tool, is_of_tool))


def _arguments_of(value: Mapping[str, Any], *, is_tool: bool) -> str | None:
    """The member of an object that has arguments of a tool, or their schema."""
    kind = value.get("type")
    if is_tool and kind in _OF_CLIENTS:
        return "parameters"
    return "input" if isinstance(kind, str) and kind.endswith("tool_use") else None


def _is_paid_tool(tool: Mapping[str, Any]) -> bool:
    """Whether it is run for money that no answer reports in a place that is read, or with a model of its own."""
    kind, config = tool.get("type"), tool.get("parameters")
    if kind == "image_generation":  # openai-python, tool_param.py: a language model writes pictures in SVG
        return tool.get("output_format") == "svg" or bool(tool.get("svg"))
    of_router = _RUN_BY_ROUTER.fullmatch(kind) if isinstance(kind, str) else None
    if of_router is None or folded(of_router[1]) in _TOOLS_OF_ROUTERS:
        return False
    engine = config.get("engine") if isinstance(config, dict) else None
    return folded(of_router[1]) != "webfetch" or engine != _FETCHES_FREELY


def _is_paid_plugin(plugin: Mapping[str, Any]) -> bool:
    name, pdf = plugin.get("id"), plugin.get("pdf")
    engine = pdf.get("engine") if isinstance(pdf, dict) else None
    return (isinstance(name, str) and folded(name) not in _PLUGINS) or engine not in _FREE_PARSERS


def _refuse_in_extra(given: Mapping[str, Any], name: str, known: frozenset[str]) -> None:
    """Raises `InvalidRequest` for a member that would replace one that the gateway reads."""
    read = {"model", *map(folded, known)}
    if over := [each[:64] for each in given if folded(outer(each)) in read]:
        text = f"Unsupported parameter: '{name}.{over[0]}'. Send it as '{over[0]}' itself."
        raise InvalidRequest(text, param=name, code="unsupported_parameter")
    if for_routers(given, known):
        raise _refused(name)
    refuse_unread(given)


def refuse_further(members: Mapping[str, Any], known: Collection[str] = (), read: Collection[str] = ()) -> None:
    """Raises `InvalidRequest` for a member or a field that names a further model, in a format that has none."""
    if for_routers(members):
        raise _refused(LISTS[0])
    refuse_unread(members, known, read)


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


def _refused_as_paid(param: str) -> InvalidRequest:
    return InvalidRequest(
        f"Unsupported parameter: '{param}' is run by the upstream for money that no answer reports. Leave it out.",
        param=param, code="unsupported_parameter",
    )  # fmt: skip


def _refused(param: str) -> InvalidRequest:
    return InvalidRequest(
        f"Unsupported parameter: '{param}' names or runs further models in a form that the gateway does not check. "
        f"Leave it out; further models for a router are at most {MOST} names in a list '{LISTS[0]}'.",
        param=param, code="unsupported_parameter",
    )  # fmt: skip
