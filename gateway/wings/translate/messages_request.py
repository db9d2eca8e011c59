"""A Messages body as a chat body.

A message of the user may hold results of tools and text: the results become tool messages, and what else there is
follows in a message of the user, with the images of the results, which a tool message of chat may not hold. Thinking
goes along as `reasoning_content` within the current turn, that is, after the last message of the user that is not only
results. Earlier thinking stays out, as Anthropic's models leave it out too; redacted thinking stays out, because only
its maker can read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.formats.reader import objects

from . import accepted, fields, tool_names
from .fields import KEPT, SAME, TRANSLATED, Rule, a_list, a_text, an_object, empty, objects_in, only, unsupported, wrong
from .media import anthropic_document_as_chat, anthropic_image_as_chat, made_picture, tool_message

MOST_STOPS = 4
"""Stop sequences of a chat call (openai-openapi, StopConfiguration)."""
_AT_ANTHROPIC = "it is a feature of Anthropic's own models"

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("model", "stream", "temperature", "top_p", "top_k"), SAME),
    **dict.fromkeys((
        "messages", "system", "max_tokens", "stop_sequences", "tools", "tool_choice", "thinking", "output_config",
        "output_format", "metadata", "context_management",
    ), TRANSLATED),
    **dict.fromkeys(("cache_control", "diagnostics"), KEPT),
    "service_tier": only("auto", "standard_only", why=_AT_ANTHROPIC),
    "speed": only("standard", why=_AT_ANTHROPIC),
    **dict.fromkeys((
        "inference_geo", "fallback_credit_token", "billing_policy", "user_profile_id", "workspace_id",
    ), only(why=_AT_ANTHROPIC)),
    "container": only(why="there are no containers"),
    "mcp_servers": empty("MCP servers are not called for this model"),
    "fallbacks": empty("there are no fallback models"),
    "compaction": only(why="messages are not compacted"),
    "thread": only(why="nothing is stored for this model"),
}  # fmt: skip
"""`cache_control`, here and in blocks, is a hint for a cache; `diagnostics` asks about one, and the answer has none."""
_CLEARS = "clear_thinking_"
"""Beginning of the context edits that take earlier thinking out, which is out anyway."""
_EFFORTS = ((4096, "low"), (16384, "medium"))
"""Thinking budget in tokens below which a chat model is asked for this effort; from the last one on, `high`."""


def translate(members: Mapping[str, Any], *, limit_field: str = "max_completion_tokens") -> fields.TranslatedRequest:
    """The chat request for these members of a Messages body.

    `limit_field` is the member in which the upstream takes an output limit. Raises `InvalidRequest`.
    """
    body = fields.sort(members, RULES, fields.CHAT)
    limit = members.get("max_tokens")
    if limit == 0:
        raise unsupported("max_tokens", "0 fills a cache, and this model has none that can be filled")
    body["messages"] = _messages(members)
    if limit is not None:
        body[limit_field] = limit
    body |= _tools(members) | _stops(members.get("stop_sequences")) | _metadata(members.get("metadata"))
    body |= _effort(members) | _format(members)
    _check_context(members.get("context_management"))
    names = accepted.changed_names(tool["name"] for tool in members.get("tools") or [])
    repeated = {name: members.get(name) for name in ("thinking", "stop_sequences")}
    return fields.TranslatedRequest(body, repeated, names)


# -------------------------------------------------------------------------------------------------------- the messages


def _messages(members: Mapping[str, Any]) -> list[dict[str, Any]]:
    listed = [*objects_in(members.get("messages"), "messages")]
    given = [message for message, _ in listed]
    if not given:
        raise wrong("messages", "it has no message")
    if given[-1].get("role") == "assistant":
        raise unsupported(listed[-1][1], "the last message must be the user's, because an answer cannot be begun")
    messages: list[dict[str, Any]] = []
    pictures: list[dict[str, Any]] = []
    if (system := _text_of(members.get("system"), "system")) is not None:
        messages.append({"role": "system", "content": system})
    turn = _start_of_turn(given)
    for number, (message, path) in enumerate(listed):
        match message.get("role"):
            case "user":
                messages += _of_user(message.get("content"), f"{path}.content", pictures)
                pictures = []
            case "assistant":
                content, here = message.get("content"), f"{path}.content"
                messages.append(_of_assistant(content, here, pictures, has_thinking=number > turn))
            case "system":
                text = _text_of(message.get("content"), f"{path}.content")
                messages.append({"role": "system", "content": text or ""})
            case other:
                raise wrong(f"{path}.role", f"`{other}` is no role of a message")
    return messages


def _start_of_turn(messages: list[dict[str, Any]]) -> int:
    """The number of the last message of the user that is not only results of tools."""
    for number in reversed(range(len(messages))):
        has_results = any(block.get("type") == "tool_result" for block in objects(messages[number].get("content")))
        if messages[number].get("role") == "user" and not has_results:
            return number
    return -1


def _text_of(content: Any, path: str) -> str | None:
    if content is None or isinstance(content, str):
        return content or None
    return "\n\n".join([text for _, text in fields.texts_in(content, path, {"text": "text"}, "block") if text]) or None


def _of_user(content: Any, path: str, images: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages for one of the user: results of tools, then these images, then everything else."""
    if content == []:
        raise wrong(path, "it has no block")
    results: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for block, here in objects_in(blocks, path):
        if block.get("type") == "tool_result":
            result, others = _result(block, here)
            results.append(result)
            images += others
        else:
            parts.append(_part(block, here))
    parts = [*images, *parts]
    if not parts:
        return results
    is_text = len(parts) == 1 and parts[0]["type"] == "text"
    return [*results, {"role": "user", "content": parts[0]["text"] if is_text else parts}]


def _part(block: Mapping[str, Any], path: str) -> dict[str, Any]:
    match block.get("type"):
        case "text":
            return {"type": "text", "text": a_text(block.get("text"), f"{path}.text")}
        case "image":
            return anthropic_image_as_chat(block, path)
        case "document":
            return anthropic_document_as_chat(block, path)
        case other:
            raise unsupported(f"{path}.type", f"a block of type `{other}` has no equivalent")


def _result(block: Mapping[str, Any], path: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A tool message, and the parts of the result that it cannot hold."""
    call_id = accepted.chat_id(a_text(block.get("tool_use_id"), f"{path}.tool_use_id"))
    content = block.get("content")
    if content is None or isinstance(content, str):
        parts = [{"type": "text", "text": content or ""}]
    else:
        parts = [_part(*each) for each in objects_in(content, f"{path}.content")]
    return tool_message(call_id, parts, "The tool has failed:" if block.get("is_error") else "")


def _of_assistant(content: Any, path: str, pictures: list[dict[str, Any]], *, has_thinking: bool) -> dict[str, Any]:
    """A message of the assistant, whose pictures are added to these."""
    message: dict[str, Any] = {"role": "assistant"}
    if isinstance(content, str):
        return {**message, "content": content}
    thoughts, texts, calls = [], [], []
    for block, here in objects_in(content, path):
        match block.get("type"):
            case "text":
                texts.append(a_text(block.get("text"), f"{here}.text"))
            case "thinking":
                thoughts.append(a_text(block.get("thinking"), f"{here}.thinking"))
            case "redacted_thinking":
                pass
            case "tool_use":
                calls.append(_call(block, here))
            case "image":
                pictures += made_picture(anthropic_image_as_chat(block, here))
            case other:
                raise unsupported(f"{here}.type", f"a block of type `{other}` has no equivalent")
    if has_thinking and any(thoughts):
        message["reasoning_content"] = "".join(thoughts)
    message["content"] = "".join(texts) or (None if calls else "")
    if calls:
        message["tool_calls"] = calls
    return message


def _call(block: Mapping[str, Any], path: str) -> dict[str, Any]:
    arguments = tool_names.compact(an_object(block.get("input"), f"{path}.input"))
    function = {"name": accepted.tool_name(a_text(block.get("name"), f"{path}.name")), "arguments": arguments}
    return {"id": accepted.chat_id(a_text(block.get("id"), f"{path}.id")), "type": "function", "function": function}


# ----------------------------------------------------------------------------------------------------- other members


def _tools(members: Mapping[str, Any]) -> dict[str, Any]:
    given = members.get("tools")
    functions = [_tool(*each) for each in objects_in([] if given is None else given, "tools")]
    choice = _choice(members.get("tool_choice"))
    if not functions:
        if choice.get("tool_choice", "auto") not in ("auto", "none"):
            raise wrong("tool_choice", "a tool is required, and `tools` has none")
        return {}
    return {"tools": [{"type": "function", "function": function} for function in functions], **choice}


def _tool(tool: Mapping[str, Any], path: str) -> dict[str, Any]:
    if tool.get("type") not in (None, "custom"):
        raise unsupported(
            f"{path}.type", f"the tool `{tool['type']}` runs at Anthropic or is known to Anthropic's models only"
        )
    fields.refuse_callers(tool, path)
    about = [text for text in (tool.get("description"),) if isinstance(text, str) and text]
    examples = a_list(tool.get("input_examples") or [], f"{path}.input_examples")
    about += [f"Example of an input: {tool_names.compact(example)}" for example in examples]
    schema = an_object(tool.get("input_schema"), f"{path}.input_schema")
    name = accepted.tool_name(a_text(tool.get("name"), f"{path}.name"))
    function = accepted.chat_function(name, "\n".join(about), schema)
    if tool.get("strict") is not None:
        function["strict"] = bool(tool["strict"]) and accepted.is_strict(schema)
    return function


def _choice(given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    choice = an_object(given, "tool_choice")
    parallel = {"parallel_tool_calls": False} if choice.get("disable_parallel_tool_use") else {}
    match choice.get("type"):
        case "auto" | "none" as kind:
            return {"tool_choice": kind, **parallel}
        case "any":
            return {"tool_choice": "required", **parallel}
        case "tool":
            name = accepted.tool_name(a_text(choice.get("name"), "tool_choice.name"))
            return {"tool_choice": {"type": "function", "function": {"name": name}}, **parallel}
        case other:
            raise wrong("tool_choice.type", f"`{other}` is no tool choice")


def _stops(given: Any) -> dict[str, Any]:
    stops = a_list([] if given is None else given, "stop_sequences")
    if len(stops) > MOST_STOPS:
        raise unsupported("stop_sequences", f"there can be {MOST_STOPS} of them, not {len(stops)}")
    return {"stop": stops} if stops else {}


def _metadata(given: Any) -> dict[str, Any]:
    metadata = an_object({} if given is None else given, "metadata")
    for name in metadata:
        if name != "user_id":
            raise unsupported(f"metadata.{name}", "it has no equivalent")
    user = metadata.get("user_id")
    return {} if user is None else {"user": accepted.chat_user(a_text(user, "metadata.user_id"))}


def _effort(members: Mapping[str, Any]) -> dict[str, Any]:
    """The reasoning effort: as given, else by the thinking budget; else the upstream's own default."""
    config = an_object(members.get("output_config") or {}, "output_config")
    if config.get("effort") is not None:
        return {"reasoning_effort": config["effort"]}
    thinking = an_object(members.get("thinking") or {}, "thinking")
    match thinking.get("type"):
        case None | "disabled" | "adaptive" | "between_tools":
            return {}
        case "enabled":
            budget = thinking.get("budget_tokens")
            if type(budget) is not int:
                raise wrong("thinking.budget_tokens", "expected an integer")
            return {"reasoning_effort": next((effort for limit, effort in _EFFORTS if budget < limit), "high")}
        case other:
            raise unsupported("thinking.type", f"`{other}` has no equivalent")


def _format(members: Mapping[str, Any]) -> dict[str, Any]:
    config = an_object(members.get("output_config") or {}, "output_config")
    for name, value in config.items():
        if name not in ("effort", "format") and value is not None:
            raise unsupported(f"output_config.{name}", "it has no equivalent")
    path, given = "output_config.format", config.get("format")
    if given is None:
        path, given = "output_format", members.get("output_format")
    if given is None:
        return {}
    wanted = an_object(given, path)
    if wanted.get("type") != "json_schema":
        raise unsupported(f"{path}.type", f"the format `{wanted.get('type')}` has no equivalent")
    schema = an_object(wanted.get("schema"), f"{path}.schema")
    named = {"name": "output", "schema": schema, "strict": accepted.is_strict(schema)}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def _check_context(given: Any) -> None:
    """Edits of the context that do nothing here are taken, others refused."""
    context = an_object({} if given is None else given, "context_management")
    for name in context:
        if name != "edits":
            raise unsupported(f"context_management.{name}", "the conversation is not edited")
    for edit, path in objects_in(context.get("edits") or [], "context_management.edits"):
        kind = edit.get("type")
        if not isinstance(kind, str) or not kind.startswith(_CLEARS):
            raise unsupported(path, f"the edit `{kind}` is not made")
