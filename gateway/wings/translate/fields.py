"""Which members of a body a translation takes, by a table, and the refusals of the others.

A member that the table does not name is passed on unchanged, because upstreams extend the formats, unless the target
format reads its name as a parameter of its own: then it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from gateway.errors import InvalidRequest

from .accepted import changed_names


@dataclass(frozen=True)
class TranslatedRequest:
    """A request of a client, translated."""

    body: dict[str, Any]
    members: Mapping[str, Any] = field(default_factory=dict)
    """Those of the client's request that the answer needs, as the client sent them."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The client's names of tools, by those that are sent where they differ."""
    left_out: tuple[str, ...] = ()
    """Features that are not sent to the upstream."""

    def noted(self, *, is_short: bool = False) -> dict[str, Any]:
        """The facts that the answer needs, as JSON; a short note has nothing long that the answer only repeats."""
        return {"members": self.members, "names": list(self.names.values())}

    @classmethod
    def of_note(cls, note: Mapping[str, Any], body: dict[str, Any]) -> Self:
        """Restores a request from the result of `noted` and the members of the body that are not long."""
        return cls(body, note["members"], changed_names(note["names"]))


class Rule(NamedTuple):
    """The treatment of one member; see the constructors below."""

    kind: str
    """`same`: passed on. `translated`: the module has code for it. `kept`: without effect on the upstream's answer;
    it stays in the gateway. `only`: refused unless `allows` accepts its value, and then not sent."""
    allows: Callable[[Any], bool] = bool
    why: str = ""
    """The reason, in the error to the client, if another value is refused."""


SAME = Rule("same")
TRANSLATED = Rule("translated")
KEPT = Rule("kept")


def only(*values: Any, why: str) -> Rule:
    """Only these values, or null, which change nothing."""
    return Rule("only", lambda value: value is None or any(_equal(value, each) for each in values), why)


def empty(why: str) -> Rule:
    """Only null, or an empty list, object or string."""
    return Rule("only", lambda value: value is None or value in ([], {}, ""), why)


def _equal(value: Any, other: Any) -> bool:
    """Equality without bool as int: 0 is not false, 1 is not true; 1.0 equals 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def sort(members: Mapping[str, Any], rules: Mapping[str, Rule], target: frozenset[str]) -> dict[str, Any]:
    """The members that are passed on unchanged: those that the rules call `same`, and unknown ones.

    `target` are the parameters of the target format. Raises `InvalidRequest` for a member that cannot be translated.
    """
    passed: dict[str, Any] = {}
    for name, value in members.items():
        rule = rules.get(name)
        if rule is None:
            if name.casefold() in target or name.casefold() in rules:  # Go's JSON reader ignores case
                raise unsupported(name, "it is no parameter of this format")
            passed[name] = value
        elif rule.kind == "same":
            if value is not None:
                passed[name] = value
        elif rule.kind == "only" and not rule.allows(value):
            raise unsupported(name, rule.why)
    return passed


def unsupported(param: str, why: str) -> InvalidRequest:
    """400 for a parameter, a part or a value, at this path, that has no equivalent."""
    return InvalidRequest(
        f"Unsupported parameter: '{param}' cannot be used with this model: {why}. The model is served through another "
        "API format.",
        param=param,
        code="unsupported_parameter",
    )


def wrong(param: str, what: str) -> InvalidRequest:
    """400 for a value, at this path, that is invalid in the client's own format."""
    return InvalidRequest(f"Invalid value for '{param}': {what}.", param=param, code="invalid_value")


def an_object(value: Any, path: str) -> dict[str, Any]:
    """This value, which has to be an object. Raises `InvalidRequest`."""
    if not isinstance(value, dict):
        raise wrong(path, "expected an object")
    return value


def a_list(value: Any, path: str) -> list[Any]:
    """This value, which has to be an array. Raises `InvalidRequest`."""
    if not isinstance(value, list):
        raise wrong(path, "expected an array")
    return value


def a_text(value: Any, path: str) -> str:
    """This value, which has to be a string. Raises `InvalidRequest`."""
    if not isinstance(value, str):
        raise wrong(path, "expected a string")
    return value


def objects_in(value: Any, path: str) -> Iterator[tuple[dict[str, Any], str]]:
    """The objects of this array, each with its path. Raises `InvalidRequest` for what is none."""
    for number, each in enumerate(a_list(value, path)):
        here = f"{path}[{number}]"
        yield an_object(each, here), here


def refuse_callers(tool: Mapping[str, Any], path: str) -> None:
    """Raises `InvalidRequest` for a tool that the model itself may not call."""
    callers = tool.get("allowed_callers")
    if callers is not None and "direct" not in a_list(callers, f"{path}.allowed_callers"):
        raise unsupported(f"{path}.allowed_callers", "tools can be called by the model only")


def texts_in(parts: Any, path: str, kinds: Mapping[str, str], noun: str = "part") -> Iterator[tuple[str, str]]:
    """The texts of an array of parts, each with its type. `kinds` are the types that are taken, each with the member
    that holds the text. Raises `InvalidRequest`."""
    for part, here in objects_in(parts, path):
        kind = part.get("type")
        if not isinstance(kind, str) or kind not in kinds:
            raise unsupported(f"{here}.type", f"a {noun} of type `{kind}` cannot be used here")
        yield kind, a_text(part.get(kinds[kind]), f"{here}.{kinds[kind]}")


CHAT = frozenset({
    "messages", "n", "max_tokens", "max_completion_tokens", "functions", "function_call", "modalities", "audio",
    "logprobs", "top_logprobs", "response_format", "reasoning_effort", "verbosity", "web_search_options", "prediction",
    "stream_options", "tools", "tool_choice", "parallel_tool_calls", "stop", "store",
})  # fmt: skip
"""Parameters of chat that a translated body has from the translation, or that ask for another kind of answer."""
