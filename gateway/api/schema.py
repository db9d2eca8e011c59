"""The schema of a body per endpoint: names, types and ranges, as in openai-openapi.

Types are strict: "2", true and 2.0 are no integers (OpenAI refuses them too), while an integer is a decimal. Unknown
members are forwarded unchecked. On completions and embeddings a parameter takes null where openai-openapi calls it
nullable; on chat every optional parameter does, because many clients write null for what they leave out, and the
upstream decides. Null means absent.

Faults are reported in the order of the fields. A field with several types has one arm per type, chosen by the type of
the value, so that a fault is reported once and for the form that the client used. Checks of long arrays stop at the
first fault, so that hostile input cannot produce 100,000 of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Discriminator, Field, GetCoreSchemaHandler, Tag
from pydantic_core import CoreSchema, core_schema

from .validation_errors import ONE_OF

MAX_PROMPTS = 2048
"""Prompts of one completions call, and inputs of one embeddings call. openai-openapi gives the number for embeddings;
for completions it gives none, and OpenAI has served batches of that size."""

MAX_OUTPUT = 2**31 - 1
"""Largest output limit. The API names none; times the most candidates that a call can have, it stays below 2**53, up
to which the ledger counts exactly."""

_ARMS: dict[type, str] = {str: "<text>", list: "<array>", dict: "<object>", type(None): "<null>"}
_ARRAY_ARMS: dict[type, str] = {int: "<tokens>", list: "<token lists>"}


def _by_type(value: Any) -> str | None:
    return _ARMS.get(type(value))


def _by_items(value: Any) -> str | None:
    """Chooses an arm as `_by_type` does, but judges the content of an array by its first item."""
    if type(value) is list and value:
        return _ARRAY_ARMS.get(type(value[0]), "<array>")
    return _ARMS.get(type(value))


def one_of(expected: str, choose: Callable[[Any], str | None] = _by_type) -> Discriminator:
    """Chooses an arm by `choose`; a value without an arm gets this message."""
    return Discriminator(
        choose,
        custom_error_type=ONE_OF,
        custom_error_message="none of the allowed types",
        custom_error_context={"expected": expected},
    )


class AnyOf(NamedTuple):
    """Raises the error of `one_of` for types without rules of their own: pydantic chooses among them without a call of
    Python."""

    expected: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.custom_error_schema(
            handler(source), ONE_OF, custom_error_message="none of the allowed types",
            custom_error_context={"expected": self.expected},
        )  # fmt: skip


Name = Annotated[str, Field(min_length=1)]
Text = Annotated[str, Tag("<text>")]
Null = Annotated[None, Tag("<null>")]
AnyObject = Annotated[dict[str, Any], Tag("<object>")]

Stop = Annotated[
    Text | Annotated[list[str], Field(min_length=1, max_length=4, fail_fast=True), Tag("<array>")] | Null,
    one_of("a string or array of strings"),
]
Token = Annotated[int, Field(ge=0)]
Prompt = Annotated[
    Text
    | Annotated[list[str], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True), Tag("<array>")]
    | Annotated[list[Token], Field(min_length=1, fail_fast=True), Tag("<tokens>")]
    | Annotated[
        list[Annotated[list[Token], Field(min_length=1, fail_fast=True)]],
        Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True),
        Tag("<token lists>"),
    ]
    | Null,
    one_of("a string, array of strings, array of integers or array of integer arrays", _by_items),
]
Input = Annotated[
    Annotated[Name, Tag("<text>")]
    | Annotated[list[Name], Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True), Tag("<array>")]
    | Annotated[list[Token], Field(min_length=1, max_length=2048, fail_fast=True), Tag("<tokens>")]
    | Annotated[
        list[Annotated[list[Token], Field(min_length=1, fail_fast=True)]],
        Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True),
        Tag("<token lists>"),
    ],
    one_of("a string, array of strings, array of integers or array of integer arrays", _by_items),
]
Content = Annotated[str | list[Any] | None, AnyOf("a string or array of objects")]
ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("<text>")] | AnyObject | Null,
    one_of("a string or object"),
]
FunctionCall = Annotated[str | dict[str, Any] | None, AnyOf("a string or object")]

OutputLimit = Annotated[int, Field(ge=0, le=MAX_OUTPUT)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
# JavaScript rounds 2**63 - 1 up to 2**63, so a client there cannot send the largest seed otherwise.
Seed = Annotated[int, Field(ge=-(2**63), le=2**63)]


class Part(BaseModel):
    """Checked, never changed, and never shown with its values."""

    # Deferred: the validator of an endpoint is made for its first body, in 1 to 4 ms, and never where none comes.
    model_config = ConfigDict(
        strict=True, frozen=True, extra="ignore", allow_inf_nan=False, hide_input_in_errors=True, defer_build=True
    )


class StreamOptions(Part):
    include_usage: bool = False
    include_obfuscation: bool = False


class Body(Part):
    """The members that every endpoint has."""

    model: Annotated[str, Field(min_length=1, max_length=256)]


class Generation(Body):
    """The fields that completions and chat share.

    `max_completion_tokens` is a chat parameter, but upstreams that read both endpoints into one structure (new-api)
    obey it on completions too. If the gateway ignored it, the output would exceed the reservation.
    """

    n: Annotated[int, Field(ge=1, le=128)] | None = None
    max_tokens: OutputLimit | None = None
    max_completion_tokens: OutputLimit | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    # Its values are checked in params.py: a pydantic dict would list every fault of a hostile one.
    logit_bias: dict[str, Any] | None = None
    seed: Seed | None = None
    stop: Stop = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class Completion(Generation):
    """Body of a completions call (openai-openapi, CreateCompletionRequest)."""

    prompt: Prompt
    best_of: Annotated[int, Field(ge=0, le=20)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    suffix: str | None = None
    user: str = ""


class Message(Part):
    """Other members of a message are not checked: resellers extend it."""

    role: Name
    content: Content = None


class Function(Part):
    name: Name


class Tool(Part):
    type: Name
    function: Function | None = None


class ResponseFormat(Part):
    type: Name


class Chat(Generation):
    """Body of a chat call (openai-openapi, CreateChatCompletionRequest)."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[Tool], Field(max_length=1024, fail_fast=True)] | None = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: FunctionCall = None
    response_format: ResponseFormat | None = None
    reasoning_effort: str | None = None
    modalities: list[Any] | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    store: bool | None = None
    user: str | None = None


class Embedding(Body):
    """Body of an embeddings call (openai-openapi, CreateEmbeddingRequest)."""

    input: Input
    dimensions: Annotated[int, Field(ge=1)] = 1
    encoding_format: Literal["float", "base64"] = "float"
    user: str = ""


Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]
"""Only the first fault is shown, and no other is looked for: thousands of them take long."""


class AnthropicMessage(Part):
    """A message of Anthropic's Messages API (`MessageParam`)."""

    role: Name
    content: Annotated[Text | Annotated[Objects, Tag("<array>")], one_of("a string or array of objects")]


class CountTokens(Body):
    """MessageCountTokensParams of Anthropic's API: what a message needs, without what concerns its generation."""

    messages: Annotated[list[AnthropicMessage], Field(min_length=1, max_length=100_000, fail_fast=True)]
    system: Annotated[Text | Annotated[Objects, Tag("<array>")] | Null, one_of("a string or array of objects")] = None
    tools: Objects | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None


class Messages(CountTokens):
    """MessageCreateParams of Anthropic's API. `max_tokens` 0 only fills the cache."""

    max_tokens: OutputLimit
    stream: bool | None = None
    temperature: Annotated[float, Field(ge=0, le=1)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=0)] | None = None
    stop_sequences: Annotated[list[str], Field(fail_fast=True)] | None = None
    metadata: dict[str, Any] | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    fallbacks: Annotated[
        Text | Annotated[Objects, Tag("<array>")] | Null, one_of("'default' or an array of objects")
    ] = None


MIN_RESPONSE_TOKENS = 16
"""Smallest output limit of a response."""

ResponseInput = Annotated[
    Text | Annotated[Objects, Tag("<array>")] | Null,
    one_of("a string or array of objects"),
]
Conversation = Annotated[str | dict[str, Any] | None, AnyOf("a string or object")]


class ResponseTool(Part):
    type: Name


class ConversationBody(Part):
    """The items and metadata of a conversation (CreateConversationBody; `items` as in POST …/items)."""

    items: Annotated[list[dict[str, Any]], Field(max_length=20)] | None = None
    metadata: dict[str, Any] | None = None


class Response(Body):
    """CreateResponse. The API takes null for every optional parameter. Values of enumerations that grow with the models
    (`service_tier`, `reasoning.effort`) are left to the upstream."""

    input: ResponseInput = None
    instructions: Content = None
    max_output_tokens: Annotated[int, Field(ge=MIN_RESPONSE_TOKENS, le=MAX_OUTPUT)] | None = None
    max_tool_calls: Annotated[int, Field(ge=0)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    background: bool | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    conversation: Conversation = None
    prompt: dict[str, Any] | None = None
    tools: Annotated[list[ResponseTool], Field(fail_fast=True)] | None = None
    tool_choice: Annotated[str | dict[str, Any] | None, AnyOf("a string or object")] = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    context_management: Annotated[list[Any], Field(min_length=1)] | None = None
    include: list[Any] | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    moderation: dict[str, Any] | None = None
    safety_identifier: Annotated[str, Field(max_length=128)] | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
