"""How APIs write an error with a status that blames the request, and the reason that a client has to read.

The shapes are those of the sources; names and texts are our own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

SECRETS = (
    "sk-upstream-key-that-nobody-may-see", "org-Q9aaaaaaaaaaaaaaaa", "AIzaSyA-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "AKIAIOSFODNN7AAAAAAA", "10.1.2.3", "a1b2c3d4e5f6a7b8c9d0e1f2a3b4c5d6", "vllm-0.models.svc.cluster.local",
    "arn:aws:bedrock:us-east-1:123456789012:provisioned-model/x", "team-42-prod", "user_2x",
)  # fmt: skip
"""What stands in some of the bodies and no client may see."""


@dataclass(frozen=True)
class Shape:
    """One answer."""

    name: str
    status: int
    body: Any
    """Bytes, or what is written as JSON."""
    says: str | None
    """The message that the client reads; None: there is no reason in it."""
    param: str | None = None
    code: str | None = None
    content_type: str = "application/json"

    @property
    def raw(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


_PYDANTIC = [
    {"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted", "input": 7},
    {"type": "int_type", "loc": ["body", "tools", 0, "n"], "msg": "Input should be an integer", "input": "x"},
]
_PYDANTIC_SAYS = "'seed': Extra inputs are not permitted; 'tools[0].n': Input should be an integer"
_INNER = {"error": {"message": "At most 1 picture.", "type": "invalid_request_error", "param": None, "code": None}}

SHAPES: tuple[Shape, ...] = (
    # docs.cohere.com, "Errors"
    Shape("cohere", 400, {"id": "1-2", "message": "too many documents"}, "too many documents"),
    # AWS Lambda: NousResearch/hermes-agent#100783
    Shape("lambda", 400, {"errorMessage": "too many documents", "errorType": "ValueError"}, "too many documents"),
    # fastapi.tiangolo.com, "Handling errors"
    Shape("fastapi-text", 422, {"detail": "The file is too short."}, "The file is too short."),
    Shape("fastapi-list", 422, {"detail": _PYDANTIC}, _PYDANTIC_SAYS, "seed"),
    Shape("fastapi-object", 400, {"detail": {"error": "No such voice"}}, "No such voice"),
    # Mistral: Gage-Technologies/mistral-go#3, partITech/php-mistral#76, mistralai/platform-docs-public#7
    Shape("mistral-text", 400, {"object": "error", "message": "Bad tool", "type": "invalid_request_error",
                                "param": None, "code": "1210"}, "Bad tool"),
    Shape("mistral-object", 422, {"object": "error", "message": {"detail": _PYDANTIC}, "code": None},
          _PYDANTIC_SAYS, "seed"),
    Shape("mistral-list", 422, {"object": "Error", "detail": _PYDANTIC, "message": _PYDANTIC, "code": 3001},
          _PYDANTIC_SAYS, "seed"),
    Shape("mistral-json", 422, {"object": "error", "message": json.dumps({"detail": _PYDANTIC}), "code": "1000"},
          _PYDANTIC_SAYS, "seed"),
    # vLLM, entrypoints/openai/protocol.py, ErrorResponse: of before and of after 0.10
    Shape("vllm", 400, {"object": "error", "message": "n must be 1", "type": "BadRequestError", "param": "n",
                        "code": 400}, "n must be 1", "n"),
    Shape("error-of-an-error", 400, {"error": {"message": {"error": {"message": "Too loud"}}}}, "Too loud"),
    # developers.cloudflare.com, API reference, "Response"; musistudio/claude-code-router#1630
    Shape("cloudflare", 400, {"success": False, "errors": [{"code": 5006, "message": "AiError: Bad input: n"}],
                              "messages": [], "result": None}, "AiError: Bad input: n"),
    Shape("cloudflare-account", 400, {"errors": [{"message": f"/accounts/{SECRETS[5]}/ai has no such model"}]},
          "/accounts/***/ai has no such model"),
    Shape("list-of-texts", 400, {"errors": ["n is too large", "n is no number"]}, "n is too large; n is no number"),
    # RFC 9457; Replicate (replicate.com/docs, "HTTP API"); ASP.NET's ValidationProblemDetails
    Shape("problem", 422, {"type": "https://docs.example/too-long", "title": "Too long", "status": 422,
                           "detail": "The prompt has 9 words.", "instance": "/1"}, "The prompt has 9 words.",
          content_type="application/problem+json"),
    Shape("problem-title", 400, {"type": "about:blank", "title": "The voice is unknown", "status": 400},
          "The voice is unknown", content_type="application/problem+json"),
    Shape("replicate", 422, {"title": "Input validation failed", "detail": "- input.prompt: is required\n",
                             "status": 422, "invalid_fields": []}, "- input.prompt: is required"),
    Shape("aspnet", 400, {"type": "https://tools.ietf.org/html/rfc9110#section-15.5.1", "status": 400,
                          "title": "One or more validation errors occurred.",
                          "errors": {"prompt": ["The prompt is required."]}, "traceId": "00-1"},
          "'prompt': The prompt is required.", "prompt"),
    # docs.ollama.com, "Errors"; huggingface.co/docs/text-generation-inference
    Shape("ollama", 400, {"error": "registry.ollama.ai/library/x does not support tools"},
          "registry.ollama.ai/library/x does not support tools"),
    Shape("tgi", 422, {"error": "Input validation error: too long", "error_type": "validation"},
          "Input validation error: too long"),
    # spring.io and docs.nestjs.com: the status's words are in `error`
    Shape("spring", 400, {"timestamp": "x", "status": 400, "error": "Bad Request", "message": "n is negative"},
          "n is negative"),
    Shape("nest", 400, {"statusCode": 400, "message": ["n is low", "n is odd"], "error": "Bad Request"},
          "n is low; n is odd"),
    # docs.x.ai: sentences as the code
    Shape("xai", 400, {"code": "Client specified an invalid argument", "error": "Model not found: x"},
          "Model not found: x"),
    # openrouter.ai/docs, "Errors"; reVrost/go-openrouter#21, open-webui/computer#293
    Shape("openrouter-json", 400, {"error": {"message": "Provider returned error", "code": 400, "metadata": {
        "raw": json.dumps(_INNER), "provider_name": "X"}}, "user_id": SECRETS[9]}, "At most 1 picture."),
    Shape("openrouter-object", 400, {"error": {"message": "Provider returned error", "code": 400, "metadata": {
        "raw": _INNER, "provider_name": "X"}}}, "At most 1 picture."),
    Shape("openrouter-text", 400, {"error": {"message": "Provider returned error", "code": 400, "metadata": {
        "raw": "the image is too small"}}}, "the image is too small"),
    # ai.google.dev; google/rpc/error_details.proto
    Shape("google-list", 400, [{"error": {"code": 400, "message": "Bad role", "status": "INVALID_ARGUMENT"}}],
          "Bad role"),
    Shape("google-vague", 400, {"error": {"code": 400, "message": "Request contains an invalid argument.", "details": [
        {"@type": "type.googleapis.com/google.rpc.BadRequest",
         "fieldViolations": [{"field": "contents[0]", "description": "it is empty"}]}]}},
          "'contents[0]': it is empty", "contents[0]"),
    Shape("google-project", 400, {"error": {"code": 400, "message": f"projects/{SECRETS[8]} has no such model"}},
          "projects/*** has no such model"),
    Shape("google-in-a-text", 400, {"error": {"message": json.dumps([{"error": {"message": "Bad part"}}]),
                                              "type": "upstream_error"}}, "Bad part"),
    # learn.microsoft.com, "Content filtering"; microsoft/api-guidelines, "Error condition responses"
    Shape("azure-filter", 400, {"error": {"message": "The prompt was filtered.", "type": None, "param": "prompt",
        "code": "content_filter", "status": 400, "innererror": {"code": "ResponsibleAIPolicyViolation",
        "content_filter_result": {"hate": {"filtered": False}, "violence": {"filtered": True}}}}},
          "The prompt was filtered. (filtered: violence)", "prompt", "content_filter"),
    Shape("azure-inner", 400, {"error": {"code": "BadArgument", "innererror": {"message": "No such voice"}}},
          "No such voice", None, "BadArgument"),
    Shape("odata", 400, {"error": {"code": "X", "message": {"lang": "en", "value": "No such table"}}},
          "No such table", None, "X"),
    # smithy.io, "AWS JSON protocols"
    Shape("aws", 400, {"__type": "com.amazon.coral.validate#ValidationException", "message": f"{SECRETS[7]} is busy"},
          "*** is busy"),
    Shape("aws-capital", 400, {"Message": "Malformed input request"}, "Malformed input request"),
    # axum, extract::rejection: a text
    Shape("text", 422, b"Failed to deserialize the JSON body: missing field `inputs`",
          "Failed to deserialize the JSON body: missing field `inputs`", content_type="text/plain; charset=utf-8"),
    Shape("json-text", 400, b'"n is too large"', "n is too large"),
    Shape("mark", 400, b'\xef\xbb\xbf{"message": "n is too large"}', "n is too large"),
    # vLLM and LiteLLM, where a stream was asked for
    Shape("events", 400, b'data: {"error": {"message": "n is too large"}}\n\ndata: [DONE]\n\n', "n is too large",
          content_type="text/event-stream"),
    Shape("secrets", 400, {"detail": "; ".join(["No", *SECRETS[:5], SECRETS[6]])}, "No; ***; ***; ***; ***; ***; ***"),
    Shape("long", 400, {"message": "x" * 1_000_000}, "x" * 2000 + "..."),
    # No reason.
    Shape("page", 413, b"<html><head><title>413</title></head></html>", None, content_type="text/html"),
    Shape("page-in-a-text", 400, b"oops </body>", None, content_type="text/html"),
    Shape("xml", 400, b"<?xml version='1.0'?><Error><Code>X</Code></Error>", None, content_type="application/xml"),
    Shape("empty", 400, b"", None),
    Shape("cut", 400, b'{"error": {"message": "secr', None),
    Shape("binary", 400, b"\x1f\x8b\x00\x01", None),
    Shape("without-words", 400, {"a": 1, "error": None, "errors": [], "message": ""}, None),
    Shape("deep", 400, b'{"detail":' * 5000 + b"1" + b"}" * 5000, None),
)  # fmt: skip
