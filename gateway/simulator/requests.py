"""Request bodies of the simulated upstream: the parameters that decide text, usage, stream and pace.

1. Types and bounds are checked, because the generator needs them. Rules between parameters are not: the simulator is
   no second validator of the API.
2. A refusal is 400 with the parameter's name; its text is not OpenAI's.
3. Unknown parameters are ignored. The parameter `simulate` belongs to the simulator: it sets the pace of one call or
   requests an error (see `Simulate`). A gateway forwards it, because it forwards unknown parameters.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

DIMENSIONS = 1536
"""Default and maximum length of an embedding."""


class APIError(Exception):
    """An answer with OpenAI's error object."""

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
        return json.dumps({"error": self.error}).encode()


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


class ErrorObject(_Body):
    """The error to answer with. The defaults are OpenAI's server error."""

    model_config = ConfigDict(extra="forbid")

    message: str = "The server had an error while processing your request. Sorry about that!"
    type: str = "server_error"
    param: str | None = None
    code: str | None = None


class Simulate(_Body):
    """The pace or the error of one call. `Settings` has the defaults."""

    model_config = ConfigDict(extra="forbid")

    delay_s: float | None = Field(default=None, ge=0, le=3600)
    """Seconds before the head of the answer."""
    tokens_per_s: float | None = Field(default=None, gt=0)
    tokens_per_event: int | None = Field(default=None, ge=1)
    tokens: int | None = Field(default=None, ge=0, le=100_000)
    """Length of the text in tokens before any limit; without effect on tool calls and JSON."""
    status: int | None = Field(default=None, ge=200, le=599)
    """Status of the error; 500 if only `error` is given."""
    error: ErrorObject | None = None
    cut_after_events: int | None = Field(default=None, ge=0)
    """Close the connection of a stream after this many events, without [DONE]."""

    def failure(self) -> APIError | None:
        if self.status is None and self.error is None:
            return None
        error = self.error or ErrorObject()
        status = 500 if self.status is None else self.status
        return APIError(status, error.message, error_type=error.type, param=error.param, code=error.code)


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


T = TypeVar("T")
_Some = Annotated[list[T], Field(min_length=1)]
Prompts = str | _Some[str] | _Some[int] | _Some[_Some[int]]


class RequestedStreamOptions(_Body):
    include_usage: bool | None = None


class SimulatedCall(_Body):
    """The members of every body."""

    model: str
    simulate: Simulate | None = None

    @property
    def pace(self) -> Simulate:
        """The member `simulate`, or its defaults."""
        return self.simulate or Simulate()

    @property
    def is_stream(self) -> bool:
        return False

    @property
    def include_usage(self) -> bool:
        return False


class GenerationRequest(SimulatedCall):
    """The members of all bodies that generate text."""

    stream: bool | None = None
    stream_options: RequestedStreamOptions | None = None
    n: int | None = Field(default=None, ge=1, le=128)
    stop: Annotated[list[str], BeforeValidator(_as_list), Field(min_length=1, max_length=4)] | None = None
    max_tokens: int | None = Field(default=None, ge=0)
    seed: int | None = None

    @property
    def is_stream(self) -> bool:
        return bool(self.stream)

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class CompletionRequest(GenerationRequest):
    """The body of POST /v1/completions."""

    prompt: Prompts | None
    best_of: int | None = Field(default=None, ge=0, le=20)
    echo: bool | None = None
    logprobs: int | None = Field(default=None, ge=0, le=5)

    @property
    def candidates(self) -> int:
        """Generated outputs per prompt, at least `n`; `best_of: 0` means absent."""
        return max(self.best_of or 1, self.n or 1)


class ChatRequest(GenerationRequest):
    """The body of POST /v1/chat/completions."""

    messages: _Some[dict[str, Any]]
    max_completion_tokens: int | None = Field(default=None, ge=0)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    response_format: dict[str, Any] | None = None

    @property
    def output_limit(self) -> int | None:
        """The smaller of the two limits in tokens, reasoning included; None without a limit."""
        return min((x for x in (self.max_tokens, self.max_completion_tokens) if x is not None), default=None)

    @property
    def functions(self) -> list[dict[str, Any]]:
        """The functions among `tools`; with a `tool_choice` that names one of them, only that one."""
        found = [tool["function"] for tool in self.tools or [] if isinstance(tool.get("function"), dict)]
        match self.tool_choice:
            case {"function": {"name": str(name)}}:
                return [function for function in found if function.get("name") == name]
            case "none":
                return []
        return found


class EmbeddingRequest(SimulatedCall):
    """The body of POST /v1/embeddings."""

    input: Prompts
    encoding_format: str | None = None
    dimensions: int | None = Field(default=None, ge=1, le=DIMENSIONS)


R = TypeVar("R", bound=SimulatedCall)


def parse(kind: type[R], body: bytes) -> R:
    """Read a body. Raises `APIError` for the first invalid parameter."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        location = error.errors(include_url=False)[0]["loc"]
    depth = None if location[:1] == ("simulate",) else 1
    param = ".".join(map(str, location[:depth])) or None
    raise APIError(400, f"Invalid parameter: {param}." if param else "The body is no JSON object.", param=param)


def split_forms(value: Prompts) -> list[str | list[int]]:
    """The single prompts of any of the four forms."""
    return [value] if isinstance(value, str) or isinstance(value[0], int) else [*value]


def unknown_model(model: str) -> APIError:
    """404 for a model that this endpoint does not have."""
    return APIError(404, f"The model `{model}` does not exist.", code="model_not_found")
