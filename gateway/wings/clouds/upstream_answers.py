"""The answers of clouds: the errors of one that has no such model, so that another route may serve, and headers."""

from __future__ import annotations

from gateway.records import Fault
from gateway.upstream.provider_errors import Row, WingAnswers, starts

NO_MODEL = Row(
    Fault.NO_CHANNEL,
    words=frozenset({"DeploymentNotFound"}),  # a region of Azure, whose name for it another route may know
    message=starts(
        "publisher model ",  # Vertex AI
        "the provided model identifier is invalid", "invocation of model id ",  # Bedrock
    ),
)  # fmt: skip

ID_HEADERS = ("x-amzn-requestid", "apim-request-id")

ANSWERS = WingAnswers((NO_MODEL,), ID_HEADERS)
