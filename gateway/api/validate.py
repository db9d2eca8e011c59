"""From a body to checked `Params`: the API's own rules, then the stricter ones of a key and a model.

These are two steps because the body names the model whose limits apply: `read` checks the API's rules, `restrict` the
limits of key and model. Both raise `InvalidRequest` for the first fault, in OpenAI's words (`validation_errors.py`).

`schema.py` has the rules for single fields. The rules between fields are here: `best_of` against `n` and `stream`,
choices against prompts, `top_logprobs` against `logprobs`; and names that are known ones but for their case. Go's JSON
reader, which resellers use, takes "N" (and "stop" with a long s, U+017F) for the parameter: it would be obeyed there
without having been checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from gateway.config import Limits
from gateway.errors import InvalidRequest
from gateway.records import Document, Endpoint, Params

from . import prompt_tokens, validation_errors
from .json_document import parse
from .prompt_tokens import Counter, FindsCounter
from .schema import Body, Chat, Completion, Embedding, Generation, StreamOptions

MAX_CHOICES = 2048
"""Choices of one call, prompts times n. OpenAI caps the product without naming the number (ai-dynamo took 128, which
would refuse batches that the API takes). As many as prompts: one choice for each is what batches are for, and a call
of 2048 prompts with n = 128 would ask for a quarter of a million outputs."""


def read(endpoint: Endpoint, raw: bytes, find_counter: FindsCounter = prompt_tokens.no_counter) -> Params:
    """The parameters of the body, checked by the API's own rules, and the number of its prompt tokens."""
    document = parse(raw)
    rules = _ENDPOINTS[endpoint]
    _refuse_other_case(document.members, rules.names)
    options = document.members.get("stream_options")
    if isinstance(options, dict) and "stream_options" in rules.names:
        _refuse_other_case(options, _STREAM_OPTIONS, "stream_options.")
    try:
        body = rules.schema.model_validate(document.members)
    except ValidationError as error:
        raise validation_errors.explain(error) from None
    return rules.read(document, body, find_counter(body.model))


def restrict(params: Params, endpoint: Endpoint, key: Limits, model: Limits) -> Params:
    """The same within the limits of the caller's key and of the model.

    Where they bound the output and the client did not, the tighter bound becomes the output limit, and
    `is_output_limit_added` says that it has to be written into the forwarded body.
    """
    for limits, owner in ((key, "key"), (model, "model")):
        if limits.model_fields_set:  # nearly always none
            _refuse_beyond(params.document.members, limits, owner)
    bounds = [limits.max_tokens for limits in (key, model) if limits.max_tokens is not None]
    if bounds and params.output_limit is None and endpoint != "embeddings":
        return params._replace(output_limit=min(bounds), is_output_limit_added=True)
    return params


# ------------------------------------------------------------------------------------------------- one per endpoint


def _completion(document: Document, body: Completion, count: Counter | None) -> Params:
    n = body.n or 1
    if body.best_of and body.best_of < n:
        raise InvalidRequest(
            "You requested that the server return more choices than it will generate (HINT: you must set 'n' "
            f"(currently {n}) to be at most 'best_of' (currently {body.best_of}), or omit either parameter if you "
            "don't specifically want to use them.)",
            param="best_of",
        )
    if body.best_of and body.best_of > 1 and body.stream:
        raise validation_errors.wrong_value(
            "best_of", "Results of 'best_of' > 1 cannot be streamed: leave out one of the two."
        )
    prompt = prompt_tokens.prompts(body.prompt, body.suffix, count)
    if prompt.prompts * n > MAX_CHOICES:
        raise validation_errors.wrong_value(
            "n",
            f"'n' (currently {n}) times the number of prompts (currently {prompt.prompts}) must be at most "
            f"{MAX_CHOICES}: ask for fewer choices, or send the prompts in several requests.",
        )
    # best_of: 0 is what the SDKs' own tests send for "not used".
    return _generation(document, body, prompt, best_of=body.best_of or 1)


def _chat(document: Document, body: Chat, count: Counter | None) -> Params:
    if body.top_logprobs is not None and not body.logprobs:
        raise validation_errors.wrong_value("top_logprobs", "It is only allowed when 'logprobs' is true.")
    for index, tool in enumerate(body.tools or ()):
        if tool.type == "function" and tool.function is None:
            raise validation_errors.missing(f"tools[{index}].function")
    return _generation(document, body, prompt_tokens.chat(document, count))


def _embedding(document: Document, body: Embedding, count: Counter | None) -> Params:
    prompt = prompt_tokens.prompts(body.input, count=count)
    return Params(
        document=document,
        model=body.model,
        prompts=prompt.prompts,
        prompt_tokens=prompt.tokens,
        is_prompt_exact=prompt.is_exact,
    )


def _generation(document: Document, body: Generation, prompt: prompt_tokens.Estimate, best_of: int = 1) -> Params:
    if body.logit_bias:
        _check_bias(body.logit_bias)
    given = [limit for limit in (body.max_tokens, body.max_completion_tokens) if limit is not None]
    return Params(
        document=document,
        model=body.model,
        stream=bool(body.stream),
        include_usage=bool(body.stream and body.stream_options and body.stream_options.include_usage),
        n=body.n or 1,
        best_of=best_of,
        prompts=prompt.prompts,
        prompt_tokens=prompt.tokens,
        is_prompt_exact=prompt.is_exact,
        output_limit=min(given) if given else None,
    )


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


@dataclass(frozen=True, slots=True)
class _Rules:
    schema: type[Body]
    read: Callable[[Document, Any, Counter | None], Params]
    names: frozenset[str]


_ENDPOINTS: Mapping[Endpoint, _Rules] = {
    "completions": _Rules(Completion, _completion, frozenset(Completion.model_fields)),
    "chat": _Rules(Chat, _chat, frozenset(Chat.model_fields)),
    "embeddings": _Rules(Embedding, _embedding, frozenset(Embedding.model_fields)),
}
_STREAM_OPTIONS = frozenset(StreamOptions.model_fields)


def _refuse_other_case(given: Iterable[str], known: frozenset[str], inside: str = "") -> None:
    """All known names are lower case, so one that folds to a known name is that name, in other letters."""
    for name in given:
        if name not in known and (meant := name.casefold()) in known:
            raise InvalidRequest(
                f"Unknown parameter: '{inside}{name}'. Did you mean '{inside}{meant}'?",
                param=inside + name,
                code="unknown_parameter",
            )


# ------------------------------------------------------------------------------------------ limits of keys and models

# Setting -> the parameters it bounds. By name and on every endpoint: a parameter that only another endpoint of the API
# has is passed on as unknown, and an upstream may obey it.
_BOUNDED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("n", ("n",)),
    ("best_of", ("best_of",)),
    ("logprobs", ("logprobs", "top_logprobs")),
    ("max_tokens", ("max_tokens", "max_completion_tokens")),
)


def _refuse_beyond(members: Mapping[str, Any], limits: Limits, owner: str) -> None:
    if limits.deny:
        denied = {name.casefold() for name in limits.deny}
        for name in members:
            if name.casefold() in denied:
                raise InvalidRequest(
                    f"Unsupported parameter: '{name}' is not allowed with this {owner}. Leave it out.",
                    param=name,
                    code="unsupported_parameter",
                )
    for setting, names in _BOUNDED:
        bound = getattr(limits, setting)
        if bound is None:
            continue
        for name in names:
            value = members.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and value > bound:
                raise validation_errors.above(name, value, bound, f"This {owner} allows")
    if limits.stop is not None:
        stop = members.get("stop")
        count = len(stop) if isinstance(stop, list) else int(isinstance(stop, str))
        if count > limits.stop:
            raise validation_errors.array_too_long("stop", count, limits.stop, f"This {owner} allows")
