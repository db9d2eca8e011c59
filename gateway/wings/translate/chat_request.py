"""A chat body as a Messages body, for Anthropic itself as the upstream.

System and developer messages, wherever they are, become the system prompt, one block each, as Anthropic's own
chat endpoint has it (platform.claude.com/docs, "OpenAI SDK compatibility"). Messages of one role in a row become one,
with the results of tools first, where Messages wants them. Thinking comes back to the model in `thinking_blocks` of a
message, which `chat_answer` writes; `reasoning_content` without its signature stays out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.formats.event_scan import parsed

from . import accepted, fields
from .fields import KEPT, SAME, TRANSLATED, Rule, a_list, a_text, an_object, empty, objects_in, only, unsupported, wrong
from .media import chat_file_as_anthropic, chat_image_as_anthropic

_NO_SUCH = "Messages has no such parameter"

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("model", "stream"), SAME),
    **dict.fromkeys((
        "messages", "max_tokens", "max_completion_tokens", "temperature", "top_p", "stop", "tools", "tool_choice",
        "parallel_tool_calls", "response_format", "reasoning_effort", "user", "safety_identifier", "service_tier",
    ), TRANSLATED),
    **dict.fromkeys(("stream_options", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"), KEPT),
    "n": only(1, why="there is one answer to a call"),
    "logprobs": only(False, why=_NO_SUCH),
    "logit_bias": empty(_NO_SUCH),
    **dict.fromkeys(("top_logprobs", "frequency_penalty", "presence_penalty"), only(0, why=_NO_SUCH)),
    **dict.fromkeys(("seed", "prediction", "moderation"), only(why=_NO_SUCH)),
    "functions": empty("use `tools`"),
    "function_call": only("auto", "none", why="use `tool_choice`"),
    "modalities": only([], ["text"], why="answers are text"),
    "audio": only(why="answers are text"),
    "verbosity": only("medium", why=_NO_SUCH),
    "web_search_options": only(why="the web is not searched for this model"),
    "store": only(False, why="nothing is stored for this model"),
    "metadata": empty("it belongs to stored answers, and nothing is stored for this model"),
}  # fmt: skip
"""The cache parameters are hints; usage is always reported, so `stream_options` has nothing to ask for."""
MESSAGES = frozenset({
    "system", "stop_sequences", "output_config", "output_format", "container", "mcp_servers", "fallbacks",
    "cache_control", "context_management", "speed", "inference_geo", "compaction", "workspace_id", "user_profile_id",
})  # fmt: skip
"""Parameters of Messages that a chat call may not smuggle in. `thinking` and `top_k` are extensions of chat that are
in use, and pass."""
_EFFORTS = frozenset({"low", "medium", "high", "xhigh", "max"})
_TIERS = {"auto": "auto", "default": "standard_only"}
_HIGHEST_TEMPERATURE = 1
_DEFAULT = 1
"""Default of `temperature` and of `top_p`, in both formats."""


def translate(members: Mapping[str, Any], *, output_limit: int | None) -> fields.TranslatedRequest:
    """The Messages request for these members of a chat body.

    `output_limit` is the limit in tokens for a call that gives none, as Messages requires one. Raises `InvalidRequest`.
    """
    body = fields.sort(members, RULES, MESSAGES)
    system, body["messages"] = _conversation(members.get("messages"))
    if system:
        body["system"] = system
    given = [members[name] for name in ("max_tokens", "max_completion_tokens") if members.get(name) is not None]
    if given or output_limit is not None:
        body["max_tokens"] = min(given) if given else output_limit
    body |= _sampling(members) | _stops(members.get("stop"))
    body |= _tools(members) | _output(members) | _user(members) | _tier(members.get("service_tier"))
    names = accepted.changed_names(tool["function"]["name"] for tool in members.get("tools") or [])
    return fields.TranslatedRequest(body, names=names)


# -------------------------------------------------------------------------------------------------------- the messages


def _conversation(given: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    system: list[dict[str, Any]] = []
    messages: list[dict[str, Any]] = []
    ids = _CallIds()
    for message, path in objects_in(given, "messages"):
        match message.get("role"):
            case "system" | "developer":
                system += _texts(message.get("content"), f"{path}.content")
            case "user":
                _append(messages, "user", _of_user(message.get("content"), f"{path}.content"))
            case "tool":
                _append(messages, "user", [_result(message, path, ids)])
            case "assistant":
                _append(messages, "assistant", _of_assistant(message, path, ids))
            case other:
                raise unsupported(f"{path}.role", f"a message of the role `{other}` has no equivalent")
    if not messages:
        raise unsupported("messages", "there has to be a message of the user")
    for each in messages:  # results come first (agentscope#2612)
        each["content"].sort(key=lambda block: each["role"] == "user" and block["type"] != "tool_result")
    last = messages[-1]["content"][-1]
    if messages[-1]["role"] == "assistant" and last.get("type") == "text":
        last["text"] = last["text"].rstrip()  # else its 400 (opencode#1295)
    return system, messages


class _CallIds:
    """The ids of calls as Messages accepts them. They have to be unique there, and some upstreams number the calls of
    each turn anew (litellm#23510)."""

    def __init__(self) -> None:
        self._open: dict[str, list[str]] = {}
        """The calls of each id that have no result yet."""
        self._newest: dict[str, str] = {}
        self._all: set[str] = set()

    def of_call(self, given: str) -> str:
        call_id = accepted.messages_id(given)
        if call_id in self._all:
            call_id = f"{call_id}_{len(self._all)}"
        self._all.add(call_id)
        self._open.setdefault(given, []).append(call_id)
        self._newest[given] = call_id
        return call_id

    def of_result(self, given: str) -> str:
        """That of the first open call: some upstreams give all calls of a turn one id (openai-agents-python#1959)."""
        if self._open.get(given):
            return self._open[given].pop(0)
        return self._newest.get(given) or accepted.messages_id(given)


def _append(messages: list[dict[str, Any]], role: str, blocks: list[dict[str, Any]]) -> None:
    if not blocks:
        return  # Messages refuses one without content
    if messages and messages[-1]["role"] == role:
        messages[-1]["content"] += blocks
    else:
        messages.append({"role": role, "content": blocks})


def _texts(content: Any, path: str) -> list[dict[str, Any]]:
    """Blocks of text, without those of blanks, which Messages refuses (home-assistant#175637)."""
    if content is None or isinstance(content, str):
        texts = [content or ""]
    else:
        texts = [text for _, text in fields.texts_in(content, path, {"text": "text", "refusal": "refusal"})]
    return [{"type": "text", "text": text} for text in texts if text and not text.isspace()]


def _of_user(content: Any, path: str) -> list[dict[str, Any]]:
    if not isinstance(content, list):
        return _texts(content, path)
    blocks = []
    for part, here in objects_in(content, path):
        match part.get("type"):
            case "text":
                blocks += _texts([part], path)
            case "image_url":
                blocks.append(chat_image_as_anthropic(part, here))
            case "file":
                blocks.append(chat_file_as_anthropic(part, here))
            case other:
                raise unsupported(f"{here}.type", f"a part of type `{other}` has no equivalent")
    return blocks


def _result(message: Mapping[str, Any], path: str, ids: _CallIds) -> dict[str, Any]:
    call_id = a_text(message.get("tool_call_id"), f"{path}.tool_call_id")
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": ids.of_result(call_id)}
    blocks = _of_user(message.get("content"), f"{path}.content")
    return {**result, "content": blocks} if blocks else result


def _of_assistant(message: Mapping[str, Any], path: str, ids: _CallIds) -> list[dict[str, Any]]:
    if message.get("function_call"):
        raise unsupported(f"{path}.function_call", "use `tool_calls`")
    if message.get("audio"):
        raise unsupported(f"{path}.audio", "answers are text")
    thinking = a_list(message.get("thinking_blocks") or [], f"{path}.thinking_blocks")
    texts = [block for name in ("content", "refusal") for block in _texts(message.get(name), f"{path}.{name}")]
    calls = objects_in(message.get("tool_calls") or [], f"{path}.tool_calls")
    return [*thinking, *texts, *[_call(*each, ids) for each in calls]]


def _call(call: Mapping[str, Any], path: str, ids: _CallIds) -> dict[str, Any]:
    if call.get("type", "function") != "function":
        raise unsupported(f"{path}.type", f"a call of type `{call['type']}` has no equivalent")
    function = an_object(call.get("function"), f"{path}.function")
    arguments = a_text(function.get("arguments"), f"{path}.function.arguments")
    if (given := parsed(arguments or "{}")) is None:
        raise unsupported(f"{path}.function.arguments", "arguments have to be a JSON object")
    call_id = ids.of_call(a_text(call.get("id"), f"{path}.id"))
    return {"type": "tool_use", "id": call_id, "name": _name(function, f"{path}.function"), "input": given}


def _name(function: Mapping[str, Any], path: str) -> str:
    return accepted.tool_name(a_text(function.get("name"), f"{path}.name"))


def _sampling(members: Mapping[str, Any]) -> dict[str, Any]:
    """Newer models take one of the two (MCP-Universe#49), so one that is the default is not sent beside the other."""
    temperature, top_p = members.get("temperature"), members.get("top_p")
    if temperature is not None and temperature > _HIGHEST_TEMPERATURE:
        raise unsupported("temperature", f"it can be at most {_HIGHEST_TEMPERATURE}")
    given = {name: value for name, value in (("temperature", temperature), ("top_p", top_p)) if value is not None}
    return {name: value for name, value in given.items() if value != _DEFAULT} or dict([*given.items()][:1])


def _stops(given: Any) -> dict[str, Any]:
    """Stop sequences; Messages refuses one of blanks alone (litellm#3286)."""
    stops = [given] if isinstance(given, str) else given or []
    for number, stop in enumerate(stops):
        if not stop.strip():
            here = "stop" if isinstance(given, str) else f"stop[{number}]"
            raise unsupported(here, "it has to have a character that is no blank")
    return {"stop_sequences": stops} if stops else {}


# ------------------------------------------------------------------------------------------------------- other members


def _tools(members: Mapping[str, Any]) -> dict[str, Any]:
    tools = [_tool(*each) for each in objects_in(members.get("tools") or [], "tools")]
    names_given = [tool["name"] for tool in tools]
    for number, name in enumerate(names_given):
        if name in names_given[:number]:  # else its 400 (LibreChat#13162)
            raise wrong(f"tools[{number}]", f"two tools are called `{name}`")
    choice, names = _choice(members.get("tool_choice"))
    if names is not None:
        tools = [tool for tool in tools if tool["name"] in names]
    if not tools:
        if choice["type"] in ("any", "tool"):
            raise wrong("tool_choice", "a tool is required, and `tools` has none")
        return {}
    is_one = members.get("parallel_tool_calls") is False and choice["type"] != "none"
    if is_one:
        choice["disable_parallel_tool_use"] = True
    is_default = members.get("tool_choice") is None and not is_one
    return {"tools": tools} if is_default else {"tools": tools, "tool_choice": choice}


def _tool(tool: Mapping[str, Any], path: str) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise unsupported(f"{path}.type", f"a tool of type `{tool.get('type')}` has no equivalent")
    function = an_object(tool.get("function"), f"{path}.function")
    schema = function.get("parameters")
    new: dict[str, Any] = {"name": _name(function, f"{path}.function")}
    if isinstance(function.get("description"), str):
        new["description"] = function["description"]
    schema = {"properties": {}} if schema is None else an_object(schema, f"{path}.function.parameters")
    new["input_schema"] = accepted.messages_schema(schema)
    if (name := accepted.wrong_property(new["input_schema"])) is not None:
        raise unsupported(
            f"{path}.function.parameters.properties",
            f"the property `{name[:80]}` has another name than 1 to 64 letters, digits, `_`, `.` and `-`",
        )
    if function.get("strict"):
        new["strict"] = True
        new["input_schema"] = _binding({"properties": {}, **new["input_schema"]}, f"{path}.function.parameters")
    return new


def _binding(schema: Mapping[str, Any], path: str) -> Any:
    try:
        return accepted.binding_schema(schema)
    except ValueError as fault:
        raise unsupported(path, f"{fault} cannot be asked for") from None


def _choice(given: Any) -> tuple[dict[str, Any], frozenset[str] | None]:
    """The tool choice, and the names of the tools that it allows; None: all."""
    if given is None or isinstance(given, str):
        kinds = {"none": "none", "auto": "auto", "required": "any"}
        if given is not None and given not in kinds:
            raise wrong("tool_choice", f"`{given}` is no tool choice")
        return {"type": kinds[given or "auto"]}, None
    choice = an_object(given, "tool_choice")
    match choice.get("type"):
        case "function":
            function = an_object(choice.get("function"), "tool_choice.function")
            return {"type": "tool", "name": _name(function, "tool_choice.function")}, None
        case "allowed_tools":
            allowed = an_object(choice.get("allowed_tools"), "tool_choice.allowed_tools")
            tools = objects_in(allowed.get("tools"), "tool_choice.allowed_tools.tools")
            names = [_name(an_object(tool.get("function"), path), path) for tool, path in tools]
            return _choice(allowed.get("mode"))[0], frozenset(names)
        case other:
            raise unsupported("tool_choice.type", f"a tool of type `{other}` has no equivalent")


def _output(members: Mapping[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {}
    effort = members.get("reasoning_effort")
    if effort not in (None, "none"):
        if effort not in _EFFORTS:
            raise unsupported("reasoning_effort", f"`{effort}` has no equivalent")
        config["effort"] = effort
    wanted = members.get("response_format")
    if wanted is not None:
        match an_object(wanted, "response_format").get("type"):
            case "text":
                pass
            case "json_schema":
                inner = an_object(wanted.get("json_schema"), "response_format.json_schema")
                path = "response_format.json_schema.schema"
                schema = _binding(an_object(inner.get("schema"), path), path)
                config["format"] = {"type": "json_schema", "schema": schema}
            case other:
                raise unsupported("response_format.type", f"`{other}` has no equivalent; use json_schema")
    thinking = {"thinking": {"type": "disabled"}} if effort == "none" else {}
    return {**thinking, "output_config": config} if config else thinking


def _user(members: Mapping[str, Any]) -> dict[str, Any]:
    user = members.get("safety_identifier") or members.get("user")
    return {"metadata": {"user_id": accepted.messages_user(user)}} if user else {}


def _tier(tier: Any) -> dict[str, Any]:
    if tier is None:
        return {}
    if tier not in _TIERS:
        raise unsupported("service_tier", f"`{tier}` has no equivalent")
    return {"service_tier": _TIERS[tier]}
