"""What a body may ask for, checked a little like OpenAI does it, and how a refusal is worded.

Unknown parameters are ignored. One parameter is ours: `simulate`, an object with which a request sets its own pace or
asks for trouble (see `Simulate`). A gateway passes it on, because it passes on what it does not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from .settings import Endpoint
from .text import END_OF_TEXT

DIMENSIONS = 1536
"""Length of an embedding where the request does not say, and the most it may say."""

MOST_CHOICES = 128
"""The most choices of one answer, prompts times n."""


class APIError(Exception):
    """An answer with the four-key error object. `param` and `code` are null where OpenAI leaves them so."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        error_type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error = {"message": message, "type": error_type, "param": param, "code": code}

    def body(self) -> bytes:
        """The JSON that the client reads."""
        return json.dumps({"error": self.error}).encode()


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


class ErrorObject(_Body):
    """The error to answer with; what is not given is OpenAI's server error."""

    model_config = ConfigDict(extra="forbid")

    message: str = "The server had an error while processing your request. Sorry about that!"
    type: str = "server_error"
    param: str | None = None
    code: str | None = None


class Simulate(_Body):
    """How this one call is to be served; what is not given is as `Settings` say."""

    model_config = ConfigDict(extra="forbid")

    delay_s: float | None = Field(default=None, ge=0, le=3600)
    """Seconds before the head of the answer."""
    tokens_per_s: float | None = Field(default=None, gt=0)
    tokens_per_event: int | None = Field(default=None, ge=1)
    tokens: int | None = Field(default=None, ge=0, le=100_000)
    """Length of the text before any limit, in tokens; not of tool calls and JSON."""
    status: int | None = Field(default=None, ge=200, le=599)
    """Answer with the error object under this status (500 where only `error` is given)."""
    error: ErrorObject | None = None
    cut_after_events: int | None = Field(default=None, ge=0)
    """Close the connection of a stream after this many events, without [DONE]."""

    def failure(self) -> APIError | None:
        """The error that was asked for, if one was."""
        if self.status is None and self.error is None:
            return None
        error = self.error or ErrorObject()
        status = 500 if self.status is None else self.status
        return APIError(status, error.message, error_type=error.type, param=error.param, code=error.code)


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Stop = Annotated[list[str], BeforeValidator(_as_list), Field(min_length=1, max_length=4)]
Prompts = str | list[str] | list[int] | list[list[int]]


class RequestedStreamOptions(_Body):
    include_usage: bool | None = None


class _Call(_Body):
    model: str
    simulate: Simulate | None = None

    @property
    def pace(self) -> Simulate:
        """What `simulate` says, which may be nothing."""
        return self.simulate or Simulate()

    @property
    def is_stream(self) -> bool:
        return False

    @property
    def include_usage(self) -> bool:
        return False

    def refuse(self) -> None:
        """Raise `APIError` for what no single field can know."""


class _Generation(_Call):
    stream: bool | None = None
    stream_options: RequestedStreamOptions | None = None
    n: int | None = Field(default=None, ge=1, le=128)
    stop: Stop | None = None
    max_tokens: int | None = Field(default=None, ge=0)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, ge=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    seed: int | None = None

    @property
    def is_stream(self) -> bool:
        return bool(self.stream)

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def refuse(self) -> None:
        if self.stream_options is not None and not self.stream:
            message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
            raise APIError(400, message, param="stream_options")
        if self.pace.cut_after_events is not None and not self.stream:
            raise invalid("simulate.cut_after_events", "only a stream can be cut; set 'stream' to true.")


class CompletionRequest(_Generation):
    """The body of POST /v1/completions."""

    prompt: Prompts | None
    best_of: int | None = Field(default=None, ge=0, le=20)
    echo: bool | None = None
    logprobs: int | None = Field(default=None, ge=0, le=5)
    suffix: str | None = None

    @property
    def candidates(self) -> int:
        """Outputs that are generated per prompt; `best_of: 0` counts as absent."""
        return self.best_of or self.n or 1

    def refuse(self) -> None:
        super().refuse()
        if self.candidates < (self.n or 1):
            raise APIError(
                400,
                "You requested that the server return more choices than it will generate (HINT: you must set 'n' "
                f"(currently {self.n}) to be at most 'best_of' (currently {self.best_of}), or omit either parameter if "
                "you don't specifically want to use them.)",
                param="best_of",
            )
        if self.stream and (self.best_of or 1) > 1:
            raise invalid("best_of", "results cannot be streamed when 'best_of' is greater than 1.")
        forms = split_forms(END_OF_TEXT if self.prompt is None else self.prompt, "prompt")
        if len(forms) * (self.n or 1) > MOST_CHOICES:
            raise invalid("n", f"the number of prompts times 'n' must be at most {MOST_CHOICES}.")


class ChatRequest(_Generation):
    """The body of POST /v1/chat/completions."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=0)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    response_format: dict[str, Any] | None = None

    @property
    def output_limit(self) -> int | None:
        """The smaller of the two limits, in tokens, reasoning included; None where there is none."""
        return min((x for x in (self.max_tokens, self.max_completion_tokens) if x is not None), default=None)

    def refuse(self) -> None:
        super().refuse()
        for index, message in enumerate(self.messages):
            if not isinstance(message.get("role"), str):
                raise missing(f"messages[{index}].role")
            if not isinstance(message.get("content"), str | list | None):
                raise wrong_type(f"messages[{index}].content", "a string or an array", message["content"])
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid("top_logprobs", "it is only allowed when 'logprobs' is enabled.")
        self._refuse_tools()

    def _refuse_tools(self) -> None:
        names = []
        for index, tool in enumerate(self.tools or []):
            function = tool.get("function")
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise missing(f"tools[{index}].function.name")
            names.append(function["name"])
        if self.chosen_tool is not None and self.chosen_tool not in names:
            raise invalid("tool_choice", "it names a function that is not among the 'tools'.")

    @property
    def chosen_tool(self) -> str | None:
        """The name of the one function that `tool_choice` asks for, if it asks for one."""
        match self.tool_choice:
            case {"function": {"name": str(name)}}:
                return name
        return None


class EmbeddingRequest(_Call):
    """The body of POST /v1/embeddings."""

    input: Prompts
    encoding_format: str | None = None
    dimensions: int | None = Field(default=None, ge=1, le=DIMENSIONS)

    def refuse(self) -> None:
        if self.encoding_format not in (None, "float", "base64"):
            raise invalid("encoding_format", "it must be 'float' or 'base64'.")
        if self.pace.cut_after_events is not None:
            raise invalid("simulate.cut_after_events", "only a stream can be cut.")
        if any(len(form) == 0 for form in split_forms(self.input, "input")):
            raise invalid("input", "it must not be empty.")


Request = CompletionRequest | ChatRequest | EmbeddingRequest
R = TypeVar("R", bound=_Call)


def parse(kind: type[R], body: bytes) -> R:
    """Check a body. Raises `APIError` for the first fault."""
    try:
        request = kind.model_validate_json(body)
    except ValidationError as error:
        raise _explain(error) from None
    request.refuse()
    return request


def split_forms(value: Prompts, param: str) -> list[str | list[int]]:
    """The single prompts of any of the four forms. Raises `APIError` for an empty array."""
    if isinstance(value, str):
        return [value]
    if not value or any(part == [] for part in value):
        raise empty_array(param)
    if isinstance(value[0], int):
        return [value]
    return [*value]


def unknown_model(model: str) -> APIError:
    """404 for a model that is not among the settings' own."""
    message = f"The model `{model}` does not exist or you do not have access to it."
    return APIError(404, message, code="model_not_found")


def check_model(models: Mapping[str, Endpoint], model: str, endpoint: Endpoint) -> None:
    """Raise `APIError` where the model is unknown, or belongs to another endpoint."""
    kind = models.get(model)
    if kind is None:
        raise unknown_model(model)
    if kind != endpoint:
        raise APIError(404, _ELSEWHERE[endpoint].format(article=_ARTICLES[kind], there=_PATHS[kind]), param="model")


_PATHS: dict[Endpoint, str] = {
    "completions": "v1/completions",
    "chat": "v1/chat/completions",
    "embeddings": "v1/embeddings",
}
_ARTICLES: dict[Endpoint, str] = {
    "completions": "a completions model",
    "chat": "a chat model",
    "embeddings": "an embedding model",
}
_ELSEWHERE: dict[Endpoint, str] = {
    "completions": "This is {article} and not supported in the v1/completions endpoint. Did you mean to use {there}?",
    "chat": "This is not a chat model and thus not supported in the v1/chat/completions endpoint. "
    "Did you mean to use {there}?",
    "embeddings": "This is {article} and not supported in the v1/embeddings endpoint. Did you mean to use {there}?",
}


# ---------------------------------------------------------------------------------------------------- words of refusal

_BAD_JSON = (
    "We could not parse the JSON body of your request. (HINT: This likely means you aren't using your HTTP library "
    "correctly. The OpenAI API expects a JSON payload, but what was sent was not valid JSON.)"
)

_EXPECTED = {
    "string_type": "a string",
    "bool_type": "a boolean",
    "int_type": "an integer",
    "float_type": "a number",
    "dict_type": "an object",
    "model_type": "an object",
    "list_type": "an array",
}

_FORMS = "a string, an array of strings, an array of integers or an array of integer arrays"

_KINDS = {str: "a string", bool: "a boolean", int: "an integer", float: "a number", dict: "an object", list: "an array"}


def invalid(param: str, why: str) -> APIError:
    """400 for a value that fits the type and yet cannot be."""
    return APIError(400, f"Invalid '{param}': {why}", param=param, code="invalid_value")


def missing(param: str) -> APIError:
    """400 for a parameter that has to be there."""
    return APIError(400, f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")


def wrong_type(param: str, expected: str, value: Any) -> APIError:
    """400 for a value of another JSON type."""
    got = _KINDS.get(type(value), "null")
    message = f"Invalid type for '{param}': expected {expected}, but got {got} instead."
    return APIError(400, message, param=param, code="invalid_type")


def empty_array(param: str) -> APIError:
    """400 for an array without a member."""
    message = (
        f"Invalid '{param}': empty array. Expected an array with minimum length 1, but got an empty array instead."
    )
    return APIError(400, message, param=param, code="empty_array")


def _explain(error: ValidationError) -> APIError:
    """The first fault in OpenAI's words; the bounds of pydantic's context are those of the field."""
    detail = error.errors(include_url=False)[0]
    location, value, context = detail["loc"], detail["input"], detail.get("ctx", {})
    if not location:
        return APIError(400, _BAD_JSON)
    if location[0] in ("prompt", "input") and detail["type"] != "missing":
        return wrong_type(str(location[0]), _FORMS, value if len(location) <= 2 else [])
    param = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".")
    match detail["type"]:
        case "missing":
            return missing(param)
        case "less_than_equal":
            return _beyond(param, value, "above maximum", "<=", context["le"])
        case "greater_than_equal":
            return _beyond(param, value, "below minimum", ">=", context["ge"])
        case "greater_than":
            return _beyond(param, value, "below minimum", ">", context["gt"])
        case "too_short":
            return empty_array(param)
        case "too_long":
            limit = f"Expected an array with maximum length {context['max_length']}"
            message = f"Invalid '{param}': array too long. {limit}, but got an array with length {len(value)} instead."
            return APIError(400, message, param=param, code="array_above_max_length")
        case "extra_forbidden":
            return APIError(400, f"Unknown parameter: '{param}'.", param=param, code="unknown_parameter")
        case kind:
            return wrong_type(param, _EXPECTED.get(kind, "another value"), value)


def _beyond(param: str, value: float, what: str, sign: str, bound: float) -> APIError:
    kind = "integer" if isinstance(bound, int) and isinstance(value, int) else "decimal"
    message = f"Invalid '{param}': {kind} {what} value. Expected a value {sign} {bound:g}, but got {value:g} instead."
    code = f"{kind}_above_max_value" if what.startswith("above") else f"{kind}_below_min_value"
    return APIError(400, message, param=param, code=code)
