"""Parameters of LiteLLM's entries, such as `reasoning_effort`, as rules of `parameters`: they hold where a client
sends none, as for LiteLLM, which puts arguments of a call behind those of the entry (`router.py`, `_acompletion`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from gateway.config.faults import printable
from gateway.config.include import Place

_EVERYWHERE = ("chat", "completions", "responses", "messages")
_CHATS = ("chat", "completions")
MEMBERS: Mapping[str, Mapping[str, str]] = {
    "temperature": dict.fromkeys(_EVERYWHERE, "temperature"),
    "top_p": dict.fromkeys(_EVERYWHERE, "top_p"),
    "reasoning_effort": {"chat": "reasoning_effort", "responses": "reasoning.effort"},
    "thinking": {"messages": "thinking"},
    "seed": dict.fromkeys(_CHATS, "seed"),
    "stop": dict.fromkeys(_CHATS, "stop"),
    "frequency_penalty": dict.fromkeys(_CHATS, "frequency_penalty"),
    "presence_penalty": dict.fromkeys(_CHATS, "presence_penalty"),
}
"""Members of requests by the parameter of LiteLLM and the endpoint."""


def _add_parameters(given: Any, place: Place, name: str, endpoints: Sequence[str]) -> None:
    """Write the rules of an entry; those of another entry of its name are there already, and stay."""
    by_endpoint: dict[str, dict[str, Any]] = {}
    for parameter, members in MEMBERS.items():
        where = (*place, "litellm_params", parameter)
        if (value := given.take(*where)) is None:
            continue
        held = [endpoint for endpoint in endpoints if endpoint in members]
        if not held:
            given.note(where, f"no endpoint of this model has it: {', '.join(endpoints)}")
        for endpoint in held:
            by_endpoint.setdefault(endpoint, {})[members[endpoint]] = given.plain(value)
    alike: list[dict[str, Any]] = []
    for endpoint, members in by_endpoint.items():
        same = next((rule for rule in alike if rule["default"] == members), None)
        if same is not None:
            same["endpoints"].append(endpoint)
        else:
            alike.append({"endpoints": [endpoint], "default": members})
    model = given.done.values["models"][name]
    is_first = len(model["routes"]) <= 1
    rules = given.done.values.get("parameters", {}).get("models", {})
    if is_first and alike:
        given.done.values.setdefault("parameters", {"models": {}})["models"][name] = alike
    elif alike != rules.get(name, []):
        given.note(
            place, f"parameters are by the model's name here, and those of the first entry of {printable(name)} hold"
        )


LITELLM = SimpleNamespace(kinds={}, amend=_add_parameters)
"""The importer calls `amend` for each entry that it has converted."""
