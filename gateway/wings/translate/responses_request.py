"""A Responses body as a chat body.

Turns of the assistant come as items: reasoning, messages and tool calls, which are one message in chat. Results of
tools may hold images, which a tool message of chat may not: they follow in a message of the user. The leading system
and developer messages become one system message behind the instructions, because many chat templates take only one.

Reasoning goes along within the current turn, that is, after the last message of the user, as models with interleaved
thinking want it. Earlier reasoning and encrypted reasoning, which only its maker can read, stay out, and the answer
reports it in `input_transformations`, as the API does (openai-python, `types/responses/response.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from . import accepted, fields, tool_names
from .fields import KEPT, SAME, TRANSLATED, Rule, a_list, a_text, an_object, empty, objects_in, only, unsupported, wrong
from .media import chat_image, made_picture, tool_message
from .tool_names import CalledTool, OfferedTools

_STATE = "nothing is stored for this model, so send the whole conversation in `input`"
_HOSTED = "no hosted tools run for this model"

RULES: Mapping[str, Rule] = {
    **dict.fromkeys((
        "model", "stream", "temperature", "top_p", "user", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "service_tier",
    ), SAME),
    **dict.fromkeys((
        "input", "instructions", "max_output_tokens", "tools", "tool_choice", "parallel_tool_calls", "text",
        "reasoning", "include", "top_logprobs",
    ), TRANSLATED),
    **dict.fromkeys(("metadata", "client_metadata", "max_tool_calls", "prompt_cache_options"), KEPT),
    "store": only(False, why=_STATE + " and `store: false`"),
    "background": only(False, why="answers are not made in the background"),
    "previous_response_id": only(why=_STATE),
    "conversation": only(why=_STATE),
    "prompt": only(why="prompt templates are stored at OpenAI"),
    "truncation": only("disabled", why="input that is too long is refused, not shortened"),
    "context_management": empty("input is not compacted"),
    "moderation": only(why="moderation does not run beside the model"),
    "background_options": empty("answers are not made in the background"),
    "access_programs": empty("access programs are those of OpenAI"),
    "image": empty(_HOSTED),
    "stream_options": only({}, {"include_obfuscation": False}, why="events are not padded"),
}  # fmt: skip
"""`max_tool_calls` bounds hosted tools only, and none runs. `prompt_cache_options` are hints for a cache."""
_INCLUDES = frozenset({
    "reasoning.encrypted_content", "message.output_text.logprobs", "message.input_image.image_url",
    "file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
    "computer_call_output.output.image_url", "code_interpreter_call.outputs",
})  # fmt: skip
"""Known values of `include`. Only log probabilities can be in an answer of chat; there is no encrypted reasoning and
no hosted tool whose results could be included."""
_LOGPROBS = "message.output_text.logprobs"
LONGEST_IN_SHORT = 1024
"""Characters of a member in a short note."""


@dataclass(frozen=True, kw_only=True)
class AskedResponse(fields.TranslatedRequest):
    tools: OfferedTools
    transformations: tuple[dict[str, Any], ...]
    """The reasoning items that stay out, as `input_transformations` of the answer."""

    def noted(self, *, is_short: bool = False) -> dict[str, Any]:
        repeated = self.members
        if is_short:
            repeated = {name: value for name, value in repeated.items() if len(json.dumps(value)) <= LONGEST_IN_SHORT}
        return {
            "members": repeated,
            "by_name": self.tools.by_name,
            "offered": () if is_short else self.tools.offered,
            "left_out": self.left_out,
            "transformations": () if is_short else self.transformations,
        }

    @classmethod
    def of_note(cls, note: Mapping[str, Any], body: dict[str, Any]) -> Self:
        by_name = {name: CalledTool(*tool) for name, tool in note["by_name"].items()}
        tools = OfferedTools((), by_name, tuple(note["offered"]), tuple(note["left_out"]))
        removed = tuple(note["transformations"])
        return cls(body, note["members"], left_out=tools.left_out, tools=tools, transformations=removed)


def translate(members: Mapping[str, Any], *, limit_field: str = "max_completion_tokens") -> AskedResponse:
    """The chat request for these members of a Responses body.

    `limit_field` is the member in which the upstream takes an output limit. Raises `InvalidRequest`.
    """
    body = fields.sort(members, RULES, fields.CHAT)
    items = _items(members.get("input"))
    tools = tool_names.read(_tools(members.get("tools"), items))
    choice, allowed = tool_names.choice(members.get("tool_choice"), tools)
    conversation = _Conversation(allowed, _start_of_turn(items))
    instructions = members.get("instructions")
    if instructions is not None:
        conversation.system(a_text(instructions, "instructions"))
    for number, item in enumerate(items):
        conversation.add(item, number)
    body["messages"] = conversation.messages()
    if allowed.functions:
        body["tools"] = list(allowed.functions)
        if choice is not None:
            body["tool_choice"] = choice
        if members.get("parallel_tool_calls") is not None:
            body["parallel_tool_calls"] = members["parallel_tool_calls"]
    if members.get("max_output_tokens") is not None:
        body[limit_field] = members["max_output_tokens"]
    body |= _text(members.get("text")) | _reasoning(members.get("reasoning"))
    body |= _logprobs(members.get("include"), members.get("top_logprobs"))
    removed = tuple(conversation.transformations)
    repeated = {name: value for name, value in members.items() if name not in ("input", "tools")}
    return AskedResponse(body, repeated, left_out=tools.left_out, tools=tools, transformations=removed)


def _items(given: Any) -> list[dict[str, Any]]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return [item for item, _ in objects_in(given, "input")]


def _tools(given: Any, items: list[dict[str, Any]]) -> list[Any]:
    """The tools of the body, and behind them those that items add."""
    found = list(a_list([] if given is None else given, "tools"))
    for number, item in enumerate(items):
        if item.get("type") == "additional_tools":
            found += a_list(item.get("tools"), f"input[{number}].tools")
    return found


def _is_message(item: Mapping[str, Any]) -> bool:
    return item.get("type") in (None, "message") and "role" in item


def _start_of_turn(items: list[dict[str, Any]]) -> int:
    """The number of the last message of the user, after which the current turn begins."""
    return max(
        (number for number, item in enumerate(items) if _is_message(item) and item["role"] == "user"), default=-1
    )


def _text(given: Any) -> dict[str, Any]:
    """The members for `text`: the format of the answer and its verbosity."""
    if given is None:
        return {}
    text = an_object(given, "text")
    body: dict[str, Any] = {}
    if text.get("verbosity") is not None:
        body["verbosity"] = text["verbosity"]
    wanted = text.get("format")
    if wanted is not None:
        match an_object(wanted, "text.format").get("type"):
            case "text":
                pass
            case "json_object":
                body["response_format"] = {"type": "json_object"}
            case "json_schema":
                schema = {name: value for name, value in wanted.items() if name != "type" and value is not None}
                body["response_format"] = {"type": "json_schema", "json_schema": schema}
            case other:
                raise unsupported("text.format.type", f"the format `{other}` has no equivalent")
    for name in text:
        if name not in ("format", "verbosity"):
            raise unsupported(f"text.{name}", "it has no equivalent")
    return body


_REASONING: Mapping[str, Rule] = {
    "effort": TRANSLATED,
    "summary": KEPT,
    "generate_summary": KEPT,
    "context": only("auto", "current_turn", why="reasoning of earlier turns is not kept"),
    "mode": only("standard", why="there is one mode"),
}
"""A summary has to be made by the model's provider: the answer has the upstream's own reasoning where it shows any."""


def _reasoning(given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    reasoning = an_object(given, "reasoning")
    for name, value in reasoning.items():
        rule = _REASONING.get(name)
        if rule is None or (rule.kind == "only" and not rule.allows(value)):
            raise unsupported(f"reasoning.{name}", rule.why if rule else "it has no equivalent")
    effort = reasoning.get("effort")
    return {} if effort is None else {"reasoning_effort": effort}


def _logprobs(include: Any, top: Any) -> dict[str, Any]:
    wanted = a_list([] if include is None else include, "include")
    for number, each in enumerate(wanted):
        if not isinstance(each, str) or each not in _INCLUDES:
            raise unsupported(f"include[{number}]", "it cannot be included")
    if _LOGPROBS not in wanted and not top:
        return {}
    return {"logprobs": True} if top is None else {"logprobs": True, "top_logprobs": top}


# -------------------------------------------------------------------------------------------------------- the messages


class _Conversation:
    def __init__(self, tools: OfferedTools, turn: int) -> None:
        self._tools = tools
        self._turn = turn
        self._system: list[str] = []
        self._messages: list[dict[str, Any]] = []
        self._assistant: dict[str, Any] | None = None
        """The assistant's message that further items still belong to."""
        self._calling: dict[str, dict[str, Any]] = {}
        """The last message with each call, by the call's id."""
        self._results: dict[int, list[dict[str, Any]]] = {}
        """The results of a message's calls, which chat wants behind it at once (livekit/agents#1977), by its identity:
        they are put there at the end, because a place in a long list takes long to find."""
        self._images: list[dict[str, Any]] = []
        """Parts from the results of tools, for the message behind them."""
        self.transformations: list[dict[str, Any]] = []

    def system(self, text: str) -> None:
        """Add a system text: to the first message while no other has come, else as a message."""
        self._end_turn()
        if self._messages:
            self._messages.append({"role": "system", "content": text})
        else:
            self._system.append(text)

    def messages(self) -> list[dict[str, Any]]:
        self._end_turn()
        for message in self._messages:
            if message["role"] == "assistant":  # whose texts are lists of pieces so far
                for name, between in (("content", "\n\n"), ("reasoning_content", "")):
                    if name in message:
                        message[name] = between.join(filter(None, message[name]))
            if "content" not in message:
                message["content"] = None if "tool_calls" in message else ""
        texts = [text for text in self._system if text]
        first = [{"role": "system", "content": "\n\n".join(texts)}] if texts else []
        whole = [*first, *[each for one in self._messages for each in (one, *self._results.get(id(one), ()))]]
        if not whole:
            raise wrong("input", "it has no message")
        return whole

    def add(self, item: Mapping[str, Any], number: int) -> None:
        path = f"input[{number}]"
        kind = item.get("type")
        if _is_message(item):
            self._message(item, path)
            return
        match kind:
            case "function_call" | "custom_tool_call" | "local_shell_call":
                self._call(item, str(kind), path)
            case "function_call_output" | "custom_tool_call_output" | "local_shell_call_output":
                self._result(item, path)
            case "reasoning":
                self._reasoning(item, number)
            case "image_generation_call":
                data = a_text(item.get("result"), f"{path}.result")
                url = f"data:{accepted.picture_type('image/png', data)};base64,{data}"
                self._images += made_picture(chat_image(url))
            case "additional_tools":
                pass  # read with the tools
            case "item_reference":
                raise unsupported(path, _STATE)
            case other:
                raise unsupported(f"{path}.type", f"an item of type `{other}` has no equivalent")

    def _message(self, item: Mapping[str, Any], path: str) -> None:
        content = item.get("content")
        match item["role"]:
            case "system" | "developer":
                self.system(_only_text(content, f"{path}.content"))
            case "user":
                self._end_turn()
                self._messages.append({"role": "user", "content": _user_content(content, f"{path}.content")})
            case "assistant":
                self._assistant_message(content, f"{path}.content")
            case other:
                raise wrong(f"{path}.role", f"`{other}` is no role of a message")

    def _assistant_message(self, content: Any, path: str) -> None:
        """A message of the assistant. It joins the calls before it, whose results have to follow them at once."""
        text, refusal = _assistant_text(content, path)
        self._end_plain_message()
        turn = self._open_turn()
        turn.setdefault("content", []).append(text)
        if refusal:
            turn["refusal"] = refusal

    def _call(self, item: Mapping[str, Any], kind: str, path: str) -> None:
        call_id = accepted.chat_id(a_text(item.get("call_id"), f"{path}.call_id"))
        if kind == "local_shell_call":
            action = an_object(item.get("action"), f"{path}.action")
            given = {name: value for name, value in action.items() if name != "type" and value is not None}
            name, arguments = "local_shell", tool_names.compact(given)
        else:
            is_custom = kind == "custom_tool_call"
            namespace, member = item.get("namespace"), "input" if is_custom else "arguments"
            name, given_text = a_text(item.get("name"), f"{path}.name"), a_text(item.get(member), f"{path}.{member}")
            arguments = tool_names.as_arguments(given_text) if is_custom else given_text
            name = self._tools.chat_name(
                "custom" if is_custom else "function", name, namespace if isinstance(namespace, str) else None
            )
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        self._calling[call_id] = turn = self._open_turn()
        turn.setdefault("tool_calls", []).append(call)

    def _result(self, item: Mapping[str, Any], path: str) -> None:
        self._assistant = None
        # Of a local shell, `id` is that of the call (openai-python, LocalShellCallOutput).
        call_id = accepted.chat_id(a_text(item.get("call_id") or item.get("id"), f"{path}.call_id"))
        output, here = item.get("output"), f"{path}.output"
        parts = [] if isinstance(output, str) else [_part(*each) for each in objects_in(output, here)]
        message, images = tool_message(call_id, parts, output if isinstance(output, str) else "")
        self._images += images
        caller = self._calling.get(call_id)
        (self._messages if caller is None else self._results.setdefault(id(caller), [])).append(message)

    def _reasoning(self, item: Mapping[str, Any], number: int) -> None:
        path = f"input[{number}]"
        parts = a_list(item.get("content") or [], f"{path}.content")
        texts = [an_object(part, f"{path}.content").get("text") for part in parts]
        text = "".join(each for each in texts if isinstance(each, str))
        if not text or number < self._turn:
            reason = "model_mismatch" if not text else "turn_boundary"
            removed = {"type": "reasoning", "action": "removed", "id": item.get("id") or path, "reason": reason}
            self.transformations.append(removed)
            return
        self._end_plain_message()
        turn = self._open_turn()
        turn.setdefault("reasoning_content", []).append(text)

    def _open_turn(self) -> dict[str, Any]:
        if self._assistant is None:
            self._flush_images()
            self._assistant = {"role": "assistant"}
            self._messages.append(self._assistant)
        return self._assistant

    def _end_plain_message(self) -> None:
        """The next item begins another message, unless calls are waiting for their results."""
        if self._assistant is not None and "content" in self._assistant and "tool_calls" not in self._assistant:
            self._assistant = None

    def _end_turn(self) -> None:
        self._assistant = None
        self._flush_images()

    def _flush_images(self) -> None:
        if self._images:
            self._messages.append({"role": "user", "content": self._images})
            self._images = []


_TEXTS = dict.fromkeys(("input_text", "output_text", "text"), "text")


def _only_text(content: Any, path: str) -> str:
    if isinstance(content, str):
        return content
    return "\n\n".join([text for _, text in fields.texts_in(content, path, _TEXTS)])


def _assistant_text(content: Any, path: str) -> tuple[str, str]:
    """The text and the refusal of a message of the assistant."""
    if isinstance(content, str):
        return content, ""
    found = [*fields.texts_in(content, path, {**_TEXTS, "refusal": "refusal"})]
    texts, refusals = [[text for kind, text in found if (kind == "refusal") is wanted] for wanted in (False, True)]
    return "".join(texts), "".join(refusals)


def _user_content(content: Any, path: str) -> str | list[dict[str, Any]]:
    """A text alone stays a text, which every upstream takes."""
    if isinstance(content, str):
        return content
    parts = [_part(*each) for each in objects_in(content, path)]
    return str(parts[0]["text"]) if [part["type"] for part in parts] == ["text"] else parts


def _part(part: Mapping[str, Any], path: str) -> dict[str, Any]:
    match part.get("type"):
        case "input_text" | "text" | "output_text":
            return {"type": "text", "text": a_text(part.get("text"), f"{path}.text")}
        case "input_image":
            if part.get("file_id") is not None:
                raise unsupported(f"{path}.file_id", "stored files belong to another account; send a URL or its data")
            return chat_image(a_text(part.get("image_url"), f"{path}.image_url"), part.get("detail"))
        case "input_file":
            for name in ("file_id", "file_url"):
                if part.get(name) is not None:
                    raise unsupported(f"{path}.{name}", "a file has to be sent as `file_data`")
            file = {"file_data": a_text(part.get("file_data"), f"{path}.file_data")}
            if isinstance(part.get("filename"), str):
                file["filename"] = part["filename"]
            return {"type": "file", "file": file}
        case "input_audio":
            return {"type": "input_audio", "input_audio": an_object(part.get("input_audio"), f"{path}.input_audio")}
        case other:
            raise unsupported(f"{path}.type", f"a part of type `{other}` has no equivalent")
