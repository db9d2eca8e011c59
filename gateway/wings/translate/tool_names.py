"""Tools of Responses as chat functions, and the way back from a function's name to the tool.

Chat upstreams support functions only. A custom tool takes free text: it becomes a function with one string,
`input`. `local_shell` becomes a function with the members of its action. The functions of a namespace become
functions with the namespace before the name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from .accepted import chat_function, tool_name
from .fields import a_text, an_object, objects_in, refuse_callers, unsupported, wrong

LEFT_OUT = frozenset({"web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"})
"""Tools that run at OpenAI and that Codex offers in every request. The model can do without them, so they are not
offered, and the answer shows it: its `tools` list does not have them, and a header names them."""

_INPUT = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The whole input of the tool, as plain text."}},
    "required": ["input"],
    "additionalProperties": False,
}
_SHELL = {
    "type": "object",
    "properties": {
        "command": {"type": "array", "items": {"type": "string"}, "description": "The command and its arguments."},
        "working_directory": {"type": "string", "description": "Where the command is run."},
        "timeout_ms": {"type": "integer", "description": "After how many milliseconds the command is stopped."},
        "env": {"type": "object", "additionalProperties": {"type": "string"}, "description": "Environment variables."},
        "user": {"type": "string", "description": "The user that runs the command."},
    },
    "required": ["command"],
    "additionalProperties": False,
}
_SHELL_TEXT = "Runs a command on the user's machine and returns its output."


class CalledTool(NamedTuple):
    kind: str
    """Type of the tool: `function`, `custom` or `local_shell`."""
    name: str
    namespace: str | None = None


class OfferedTools(NamedTuple):
    functions: tuple[dict[str, Any], ...]
    by_name: Mapping[str, CalledTool]
    offered: tuple[Any, ...]
    """The client's tools that were offered to the upstream, as the client sent them."""
    left_out: tuple[str, ...]
    """Paths and types of the tools that were not offered: `tools[2].web_search`."""

    def tool(self, name: str) -> CalledTool:
        """The tool for a call of this name. An unknown name is passed on to the client."""
        return self.by_name.get(name) or CalledTool("function", name)

    def chat_name(self, kind: str, name: str, namespace: str | None = None) -> str:
        """The name under which the chat function of this tool is called."""
        wanted = CalledTool(kind, name, namespace)
        return next((chat for chat, tool in self.by_name.items() if tool == wanted), _joined(namespace, name))


def read(given: Any, path: str = "tools") -> OfferedTools:
    """The tools of a Responses body. Raises `InvalidRequest`."""
    functions: list[dict[str, Any]] = []
    by_name: dict[str, CalledTool] = {}
    offered: list[Any] = []
    left_out: list[str] = []
    for tool, here in objects_in([] if given is None else given, path):
        if tool.get("type") in LEFT_OUT:
            left_out.append(f"{here}.{tool['type']}")
            continue
        offered.append(tool)
        for what, function in _functions(tool, here):
            name = function["name"]
            if name in by_name:
                raise wrong(here, f"two tools would be called `{name}`")
            by_name[name] = what
            functions.append({"type": "function", "function": function})
    return OfferedTools(tuple(functions), by_name, tuple(offered), tuple(left_out))


def _functions(tool: Mapping[str, Any], path: str) -> Iterator[tuple[CalledTool, dict[str, Any]]]:
    kind = tool.get("type")
    if kind == "local_shell":
        yield CalledTool("local_shell", "local_shell"), chat_function("local_shell", _SHELL_TEXT, _SHELL)
    elif kind == "namespace":
        namespace = a_text(tool.get("name"), f"{path}.name")
        about = tool.get("description")
        for inner, here in objects_in(tool.get("tools"), f"{path}.tools"):
            if inner.get("type") not in ("function", "custom"):
                raise unsupported(f"{here}.type", f"`{inner.get('type')}` has no equivalent")
            yield _named(inner, here, namespace, about if isinstance(about, str) else "")
    elif kind in ("function", "custom"):
        yield _named(tool, path, None, "")
    else:
        raise unsupported(f"{path}.type", f"the tool `{kind}` runs at OpenAI or has no equivalent")


def _named(tool: Mapping[str, Any], path: str, namespace: str | None, about: str) -> tuple[CalledTool, dict[str, Any]]:
    name = a_text(tool.get("name"), f"{path}.name")
    refuse_callers(tool, path)
    if tool.get("async"):
        raise unsupported(f"{path}.async", "calls are not asynchronous")
    given = tool.get("description")
    texts = [about, given if isinstance(given, str) else ""]
    if tool["type"] == "function":
        schema = tool.get("parameters")
        parameters = None if schema is None else an_object(schema, f"{path}.parameters")
        function = chat_function(_joined(namespace, name), _paragraphs(texts), parameters)
        if tool.get("strict") is not None:
            function["strict"] = tool["strict"]
        return CalledTool("function", name, namespace), function
    texts.append(_format(tool.get("format"), f"{path}.format"))
    return CalledTool("custom", name, namespace), chat_function(_joined(namespace, name), _paragraphs(texts), _INPUT)


def _format(given: Any, path: str) -> str:
    """The format of a custom tool's input, in words: no chat upstream enforces a grammar of a function's string."""
    if given is None:
        return ""
    wanted = an_object(given, path)
    match wanted.get("type"):
        case "text":
            return ""
        case "grammar":
            syntax, definition = a_text(wanted.get("syntax"), f"{path}.syntax"), wanted.get("definition")
            return f"The input must follow this {syntax} grammar:\n{a_text(definition, f'{path}.definition')}"
        case other:
            raise unsupported(f"{path}.type", f"the format `{other}` has no equivalent")


def _joined(namespace: str | None, name: str) -> str:
    if namespace is not None:
        name = f"{namespace}{name}" if namespace.endswith("__") else f"{namespace}__{name}"
    return tool_name(name)


def _paragraphs(texts: list[str]) -> str:
    return "\n\n".join(text for text in texts if text)


def choice(given: Any, tools: OfferedTools, path: str = "tool_choice") -> tuple[Any, OfferedTools]:
    """The `tool_choice` of a Responses body for a chat body, and the tools that it allows. Raises `InvalidRequest`.

    Without tools chat takes no tool choice: it is None.
    """
    if given is None or isinstance(given, str):
        if given == "required" and not tools.functions:
            raise unsupported(path, "a tool is required, and none of the offered ones can be used")
        return (given if tools.functions else None), tools
    wanted = an_object(given, path)
    match wanted.get("type"):
        case "function" | "custom" | "local_shell" as kind:
            return {"type": "function", "function": {"name": _name_of(wanted, kind, tools, path)}}, tools
        case "allowed_tools":
            names = {
                _name_of(entry, str(entry.get("type")), tools, here)
                for entry, here in objects_in(wanted.get("tools"), f"{path}.tools")
                if entry.get("type") not in LEFT_OUT
            }
            kept = [each for each in tools.functions if each["function"]["name"] in names]
            return choice(wanted.get("mode") or "auto", tools._replace(functions=tuple(kept)), path)
        case other:
            raise unsupported(path, f"the tool `{other}` runs at OpenAI or has no equivalent")


def _name_of(entry: Mapping[str, Any], kind: str, tools: OfferedTools, path: str) -> str:
    name = "local_shell" if kind == "local_shell" else a_text(entry.get("name"), f"{path}.name")
    namespace = entry.get("namespace")
    chat = tools.chat_name(kind, name, namespace if isinstance(namespace, str) else None)
    if chat not in tools.by_name:
        raise wrong(path, f"the tool `{name}` is not among the tools")
    return chat


_OPENING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
_MAY_OPEN = re.compile(r'\s*(?:\{\s*(?:"(?:i(?:n(?:p(?:u(?:t(?:"\s*(?::\s*)?)?)?)?)?)?)?)?)?')
_STRING = re.compile(r'(?:[^"\\]++|\\(?:u[0-9a-fA-F]{4}|[^u]))*+')
_HIGH_SURROGATE = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
_ESCAPES = re.compile(r"(?:\\u[0-9a-fA-F]{4})++|\\[^u]")


class CustomInput:
    """Extracts the free text of a custom tool from the streamed arguments of one call of its chat function.

    These have one member, `{"input": "..."}`, and may be split at any byte. Others are passed on as the input.
    """

    def __init__(self) -> None:
        self._held = ""
        self._is_open = False
        self._is_raw = False
        self._is_over = False

    def feed(self, piece: str) -> str:
        """Take a piece of the arguments; return the further text of the input that is certain."""
        if self._is_over:
            return ""
        self._held += piece
        if not self._is_raw and not self._is_open:
            opening = _OPENING.match(self._held)
            if opening is not None:
                self._held = self._held[opening.end() :]
                self._is_open = True
            elif _MAY_OPEN.fullmatch(self._held):
                return ""
            else:
                self._is_raw = True
        return self.finish() if self._is_raw else self._decoded()

    def finish(self) -> str:
        """Call at the end of the arguments; returns the rest, which may be a partial escape."""
        text, self._held = self._held, ""
        return text

    def _decoded(self) -> str:
        match = _STRING.match(self._held)
        end = match.end() if match else 0
        self._is_over = self._held[end : end + 1] == '"'
        if not self._is_over and (half := _HIGH_SURROGATE.search(self._held, 0, end)):
            end = half.start()  # its other half is still to come
        written, self._held = self._held[:end], "" if self._is_over else self._held[end:]
        return _ESCAPES.sub(_unescaped, written)


def _unescaped(match: re.Match[str]) -> str:
    try:
        text: str = json.loads(f'"{match[0]}"', strict=False)
    except ValueError:  # no valid JSON escape
        return match[0]
    return text


def as_arguments(text: str) -> str:
    return json.dumps({"input": text}, ensure_ascii=False)


def compact(members: object) -> str:
    return json.dumps(members, ensure_ascii=False, separators=(",", ":"))
