"""Reads a body into checked `Params`: the API's own rules first, then the stricter ones of a key and a model.

These are two steps because the body names the model whose limits apply: `read` checks the API's rules, `restrict` the
limits of key and model. Both raise `InvalidRequest` for the first fault, with OpenAI's messages
(`validation_errors.py`).

`schema.py` has the rules for single fields, each format its rules between fields (`formats/`). This module has those of
every format. One of them: a name must not differ from a known one only in case. Go's JSON reader, which resellers use,
accepts "N" (and "stop" with a long s, U+017F) as the parameter, so it would take effect unchecked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from gateway.config import Limits
from gateway.errors import InvalidRequest
from gateway.records import Document, Params
from gateway.spelling import compatible, folded

from . import acting_tools, prompt_tokens, validation_errors
from .json_document import parse
from .other_models import ESCAPED, NAMES, TOOLS, for_routers, refuse_in_tools, refuse_unread
from .prompt_tokens import Counter, FindsCounter
from .schema import Body, Generation, StreamOptions

_Schema = TypeVar("_Schema", bound=BaseModel)
Reads = Callable[[Document, Any, Counter | None], Params]


class Rules:
    """The rules of one format: the schema of its body, and `read` for the rules between fields."""

    __slots__ = ("explain", "names", "read", "schema", "with_models")

    def __init__(
        self,
        schema: type[Body],
        read: Reads,
        explain: Callable[[ValidationError], InvalidRequest] = validation_errors.explain,
        with_models: Collection[str] = (),
    ) -> None:
        self.schema = schema
        self.read = read
        self.explain = explain
        """Words of the format for a fault that the schema found."""
        self.names = frozenset(schema.model_fields)
        self.with_models = with_models
        """Members of which `read` reads the `model`."""


def read(rules: Rules, raw: bytes, find_counter: FindsCounter = prompt_tokens.no_counter) -> Params:
    """The parameters of the body, checked by the API's own rules, and the number of its prompt tokens."""
    document = parse(raw)
    others: list[str] = []
    if not document.members.keys() <= rules.names:
        refuse_other_case(document.members, rules.names)
        _refuse_cache(document.members)
        _refuse_other_names(document.members)
        others = for_routers(document.members, rules.names)
    elif "tools" in document.members:
        refuse_in_tools(document.members["tools"])
    text = raw.lower()  # asked here, because nearly every body names one model, and brings tools in one member
    is_escaped = b"\\u00" in text and ESCAPED.search(text) is not None
    brings_tools = is_escaped or len(TOOLS.findall(text)) > ("tools" in document.members)
    if (
        brings_tools or (text.count(b"model") > 1 and len(NAMES.findall(text)) > 1)
        or b"deployment" in text or b"openrouter" in text or b"orq:" in text
    ):  # fmt: skip
        refuse_unread(document.members, rules.names, rules.with_models, has_tools_inside=brings_tools)
    options = document.members.get("stream_options")
    if isinstance(options, dict) and "stream_options" in rules.names:
        refuse_other_case(options, _STREAM_OPTIONS, "stream_options.")
    try:
        body = rules.schema.model_validate(document.members)
    except ValidationError as error:
        raise _with_path(rules.explain(error), document.members) from None
    params = rules.read(document, body, find_counter(body.model))
    if others:
        params = params._replace(other_models=tuple(dict.fromkeys((*params.other_models, *others))))
    return params


def _refuse_cache(members: Mapping[str, Any]) -> None:
    """Refuse a body that names a cache that Gemini keeps, which its chat takes in `extra_body` (ai.google.dev, "OpenAI
    compatibility"): at the top or in objects there, not in lists such as the messages."""
    waiting = [members]
    while waiting:
        for name, value in waiting.pop().items():
            if isinstance(value, dict):
                waiting.append(value)
            elif folded(name) == "cachedcontent" and "cachedcontents/" in str(value).lower():
                text = "Unsupported parameter: 'cachedContent' is kept at the upstream. Send the content itself."
                raise InvalidRequest(text, param="cachedContent", code="unsupported_parameter")


_REASONS: Mapping[str, str] = {
    "deferred": "asks for an answer that is made later. Leave it out",  # docs.x.ai, "Deferred Chat Completions"
    # ggml-org/llama.cpp, tools/server/server-common.cpp: they win over the names of OpenAI
    "npredict": "replaces 'max_tokens' at some upstreams. Send that instead",
    "ncmpl": "replaces 'n' at some upstreams. Send that instead",
}


def _refuse_other_names(members: Mapping[str, Any]) -> None:
    """Refuse members by which an upstream makes more than the gateway reads."""
    for name, value in members.items():
        if folded(name) == "extrabody" and isinstance(value, dict):
            _refuse_other_names(value)
        elif (reason := _REASONS.get(folded(name))) is not None and value:
            text = f"Unsupported parameter: '{name}' {reason}."
            raise InvalidRequest(text, param=name, code="unsupported_parameter")


def checked(schema: type[_Schema], members: Mapping[str, Any]) -> _Schema:
    """The members by this schema. Raises `InvalidRequest` for the first fault."""
    try:
        return schema.model_validate(members)
    except ValidationError as error:
        raise validation_errors.explain(error) from None


def _with_path(fault: InvalidRequest, members: Mapping[str, Any]) -> InvalidRequest:
    """The fault; where the body is one of another endpoint, with its path. Some clients (Cursor) send the bodies of
    Responses to /v1/chat/completions."""
    if fault.code == "missing_required_parameter" and fault.param in _PATHS:
        for name, path in _PATHS.items():
            if name in members:
                fault.message += f" The body has '{name}', which belongs to POST {path}."
                break
    return fault


_PATHS: Mapping[str, str] = {
    "messages": "/v1/chat/completions", "input": "/v1/responses", "prompt": "/v1/completions",
}  # fmt: skip
"""Where bodies with such a member belong."""


def restrict(params: Params, key: Limits, model: Limits) -> Params:
    """The parameters within the limits of the caller's key and of the model.

    Where they bound the output and the client did not, the tighter bound becomes the output limit, and
    `is_output_limit_added` is set: the limit has to be written into the forwarded body.
    """
    if not (key.model_fields_set or model.model_fields_set):  # as nearly always
        return params
    for limits, owner in ((key, "key"), (model, "model")):
        if limits.model_fields_set:
            for members in _with_configs(params.document.members):
                _refuse_beyond(members, limits, owner)
            if "tools" in map(_folded, limits.deny) and acting_tools.are_inside(params.document):
                raise _denied("tools", owner)
            if limits.max_audio_s is not None:
                _refuse_long_audio(params, limits.max_audio_s, owner)
    if params.output_limit is not None or params.default_output == 0 or params.is_usage_known:
        return params
    bounds = [limits.max_tokens for limits in (key, model) if limits.max_tokens is not None]
    return params._replace(output_limit=min(bounds), is_output_limit_added=True) if bounds else params


def generation(
    document: Document,
    body: Generation,
    prompt: prompt_tokens.Estimate,
    *,
    best_of: int = 1,
    output_param: str = "max_tokens",
    prompt_param: str = "prompt",
    default_output: int | None = None,
) -> Params:
    """The parameters that completions and chat share."""
    if body.logit_bias:
        _check_bias(body.logit_bias)
    given = [limit for limit in (body.max_tokens, body.max_completion_tokens) if limit is not None]
    return Params(
        document=document, model=body.model, stream=bool(body.stream),
        include_usage=bool(body.stream and body.stream_options and body.stream_options.include_usage),
        n=body.n or 1, best_of=best_of,
        prompts=prompt.prompts, prompt_tokens=prompt.tokens, is_prompt_exact=prompt.is_exact,
        # An upstream may read one of them only.
        output_limit=max(given) + _thinking_beside(document.members) if given else None,
        output_param=output_param, prompt_param=prompt_param, default_output=default_output,
    )  # fmt: skip


MAX_THINKING = 81_920
"""Tokens that Qwen thinks at most by default (alibabacloud.com, Model Studio: deep thinking)."""


def _thinking_beside(members: Mapping[str, Any]) -> int:
    """Tokens of thinking that DashScope does not count in `max_tokens` (Model Studio, OpenAI-compatible chat)."""
    most = 0
    for place in (members, members.get("extra_body")):
        if isinstance(place, dict) and ("thinking_budget" in place or "enable_thinking" in place):
            given = place.get("thinking_budget")
            if isinstance(given, int) and given > 0:
                most = max(most, given)
            elif place.get("enable_thinking"):
                most = max(most, MAX_THINKING)
    return most


def _check_bias(bias: Mapping[str, Any]) -> None:
    """Check the values; fractions are allowed (docs/formats.md). The keys are left to the upstream: the tests of the
    SDKs send "foo"."""
    for token, value in bias.items():
        is_number = type(value) is int or type(value) is float
        if is_number and -100 <= value <= 100:
            continue
        path = f"logit_bias.{token}" if token.isascii() and token.isdecimal() and len(token) <= 10 else "logit_bias"
        if not is_number:
            raise validation_errors.wrong_type(path, "a decimal", value)
        raise validation_errors.above(path, value, 100.0) if value > 0 else validation_errors.below(path, value, -100.0)


def _refuse_long_audio(params: Params, bound_s: float, owner: str) -> None:
    audio_ms = dict(params.units).get("audio_ms")
    if audio_ms is None:
        return
    if params.are_units_estimated:
        raise validation_errors.wrong_value(
            "file",
            f"This {owner} allows audio of at most {bound_s:g} seconds, and the length of the file cannot be read. "
            "Send wav, mp3, flac, ogg or m4a.",
        )
    if audio_ms > bound_s * 1000:
        raise InvalidRequest(
            f"Invalid 'file': audio too long. This {owner} allows at most {bound_s:g} seconds, but the file has "
            f"{audio_ms / 1000:g} seconds.",
            param="file",
            code="audio_too_long",
        )


_STREAM_OPTIONS = frozenset(StreamOptions.model_fields)


def refuse_other_case(given: Iterable[str], known: frozenset[str], inside: str = "") -> None:
    """All known names are lower case, so a name that folds to a known one differs only in case, width or blanks."""
    for name in given:
        if name not in known and (meant := compatible(name.strip(), 64).casefold().strip()) in known:
            raise validation_errors.misspelled(inside + name, inside + meant, inside + name)


# ------------------------------------------------------------------------------------------ limits of keys and models

# Setting -> the parameters it bounds. By name and on every endpoint: a parameter that only another endpoint of the API
# has is passed on as unknown, and an upstream may obey it.
_BOUNDED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("n", ("n", "candidateCount", "candidate_count")),
    ("best_of", ("best_of",)),
    ("logprobs", ("logprobs", "top_logprobs")),
    ("max_tokens", ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens", "thinking_budget")),
)


_CONFIGS = ("generationConfig", "generation_config", "extra_body")
"""Members in which Gemini's API has its parameters, and LiteLLM further ones."""


def _with_configs(members: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The members, and those of a generation's configuration: none hides one of the others."""
    return [members, *[members[name] for name in _CONFIGS if isinstance(members.get(name), dict)]]


def _folded(name: str) -> str:
    """The same for all spellings of a name: `top_k` and `topK`."""
    return name.casefold().replace("_", "")


def _denied(name: str, owner: str) -> InvalidRequest:
    text = f"Unsupported parameter: '{name}' is not allowed with this {owner}. Leave it out."
    return InvalidRequest(text, param=name, code="unsupported_parameter")


def _refuse_beyond(members: Mapping[str, Any], limits: Limits, owner: str) -> None:
    if limits.deny:
        denied = set(map(_folded, limits.deny))
        for name in members:
            if _folded(name) in denied:
                raise _denied(name, owner)
    for setting, names in _BOUNDED:
        bound = getattr(limits, setting)
        if bound is None:
            continue
        for name in names:
            value = members.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and value > bound:
                raise validation_errors.above(name, value, bound, f"This {owner} allows")
    if limits.stop is not None:
        for name in ("stop", "stop_sequences", "stopSequences"):
            stop = members.get(name)
            count = len(stop) if isinstance(stop, list) else int(isinstance(stop, str))
            if count > limits.stop:
                raise validation_errors.array_too_long(name, count, limits.stop, f"This {owner} allows")
