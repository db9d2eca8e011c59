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

SHOWN = frozenset({"x-ms-served-model", "x-ms-rai-invoked"})
"""The headers of Azure that clients see: the model behind a deployment, which Responses have in no other place
(openai/openai-python#3271) and model-router has, too; and whether the content filter ran. No other one passes: they
name the account's region, deployment and use of it (`x-ms-region`, `x-ms-deployment-name`,
`x-ms-spillover-from-deployment`, `azure-openai-deployment-utilization`) or Microsoft's machines
(`azureml-model-session`), or are ids for Microsoft's support (`apim-request-id`, `x-ms-client-request-id`), which are
the operator's: the log has them of errors."""

ANSWERS = WingAnswers((NO_MODEL,), ID_HEADERS, SHOWN)
