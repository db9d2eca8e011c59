"""`gateway init` for Azure, Amazon Bedrock and Vertex AI: their addresses, the authorization of calls, and the file.

The variables are those of the clouds' own SDKs: openai-python (lib/azure.py), botocore and AWS' SDKs (`AWS_REGION`),
python-genai (`GOOGLE_CLOUD_PROJECT`), anthropic-sdk-python (`ANTHROPIC_VERTEX_PROJECT_ID`, `CLOUD_ML_REGION`).
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import NamedTuple
from urllib.parse import urlsplit

from gateway.commands.common import UsageError
from gateway.commands.online import ask_all, lines_of
from gateway.config import ConfigError, build, resolve

Ask = Callable[[str, str], str]


class WantedPart(NamedTuple):
    """A part of an address."""

    question: str
    variables: Sequence[str]
    default: str = ""


class CloudAddress(NamedTuple):
    """A cloud, and how it is found and reached."""

    hosts: re.Pattern[str]
    auth: str
    """The type of `auth` for the cloud's own chain of credentials."""
    key_variables: Sequence[str]
    """Variables with an API key, which is presented in place of it; empty: it has none."""
    wanted: Sequence[WantedPart]
    """The parts of its address, in the order of `address`."""
    address: str


CLOUDS: Mapping[str, CloudAddress] = {
    "azure": CloudAddress(
        re.compile(r".+\.(?:openai|cognitiveservices|services\.ai)\.azure\.com"),
        "azure",
        ("AZURE_OPENAI_API_KEY", "AZURE_API_KEY"),
        (WantedPart("Address of the resource, such as https://NAME.openai.azure.com", ("AZURE_OPENAI_ENDPOINT",)),),
        "{}",
    ),
    "bedrock": CloudAddress(
        re.compile(r"bedrock-runtime(?:-fips)?\..+\.amazonaws\.com(?:\.cn)?"),
        "aws",
        ("AWS_BEARER_TOKEN_BEDROCK",),
        (WantedPart("Region of AWS", ("AWS_REGION", "AWS_DEFAULT_REGION"), "us-east-1"),),
        "https://bedrock-runtime.{}.amazonaws.com",
    ),
    "vertex": CloudAddress(
        re.compile(r"(?:[a-z0-9-]+-)?aiplatform\.googleapis\.com|aiplatform\.[a-z]+\.rep\.googleapis\.com"),
        "google",
        (),
        (
            WantedPart("Project of Google Cloud", ("GOOGLE_CLOUD_PROJECT", "ANTHROPIC_VERTEX_PROJECT_ID")),
            WantedPart("Location", ("GOOGLE_CLOUD_LOCATION", "CLOUD_ML_REGION"), "global"),
        ),
        "https://aiplatform.googleapis.com/v1/projects/{}/locations/{}",
    ),
}


def cloud_of(url: str) -> str | None:
    """The cloud of an address; None: it is none of them."""
    host = urlsplit(url).hostname or ""
    return next((name for name, cloud in CLOUDS.items() if cloud.hosts.fullmatch(host)), None)


def address_of(name: str, ask: Ask | None, environment: Mapping[str, str] = os.environ) -> str:
    """The address of a cloud by its name alone: its parts are in the environment, or asked for. Raises `UsageError`."""
    cloud, parts = CLOUDS[name], []
    for wanted in cloud.wanted:
        found = next((environment[variable] for variable in wanted.variables if environment.get(variable)), "")
        if ask is not None:
            found = ask(wanted.question, found or wanted.default)
        if not found:
            variables = " or ".join(wanted.variables)
            raise UsageError(f"argument --url: {name} needs {variables} in the environment, or a whole address")
        parts.append(found)
    address = cloud.address.format(*parts)
    if name == "vertex" and parts[1] != "global":
        host = f"{parts[1]}-aiplatform" if "-" in parts[1] else f"aiplatform.{parts[1]}.rep"
        address = address.replace("aiplatform", host, 1)
    return address


def upstreams_of(cloud: str, url: str, variable: str | None) -> tuple[dict[str, dict[str, object]], str]:
    """The upstreams of a cloud, and the models of the file. Raises `UsageError` for an address that lacks a part."""
    parts = urlsplit(url)
    origin = f"{parts.scheme}://{parts.netloc}"
    own: dict[str, object] = {"api_key": f"${{{variable}}}"} if variable else {"auth": CLOUDS[cloud].auth}
    if cloud == "azure":
        header = {"key_header": "api-key"} if variable else {}
        return {"azure": {"base_url": f"{origin}/openai/v1", **own, **header}}, _AZURE
    if cloud == "bedrock":
        return {
            "bedrock": {"base_url": origin, **own, "provider": "aws", "capabilities": {"chat": "via_messages"}},
            "bedrock-openai": {
                "base_url": f"{origin}/openai/v1", **own, "provider": "aws",
                "capabilities": {"responses": "via_chat", "messages": "via_chat"},
            },
        }, _BEDROCK  # fmt: skip
    found = re.match(r"/v1/projects/[^/]+/locations/[^/]+", parts.path)
    if found is None:
        raise UsageError("argument --url: expected https://HOST/v1/projects/PROJECT/locations/LOCATION for Vertex AI")
    root = f"{origin}{found[0]}"
    return {
        "vertex-gemini": {"base_url": f"{root}/publishers/google", **own},
        "vertex-claude": {
            "base_url": f"{root}/publishers/anthropic", **own, "capabilities": {"chat": "via_messages"},
        },
        "vertex-chat": {
            "base_url": f"{root}/endpoints/openapi", **own,
            "capabilities": {"responses": "via_chat", "messages": "via_chat"},
        },
    }, _VERTEX  # fmt: skip


_AZURE = """\
models:   # a model is a deployment; one of its own has its own settings, such as a price: docs/clouds.md
  "*": {routes: [{upstream: azure}], max_output_tokens: 4096}"""
_BEDROCK = """\
models:   # a model is an inference profile, such as us.anthropic.claude-sonnet-4-5-20250929-v1:0: docs/clouds.md
  "*anthropic.*": {routes: [{upstream: bedrock}], endpoints: [messages, chat], max_output_tokens: 8192}
  "*openai.*":
    {routes: [{upstream: bedrock-openai}], endpoints: [chat, responses, messages], max_output_tokens: 8192}"""
_VERTEX = """\
models:   # such as claude-sonnet-4-5@20250929, and google/gemini-2.5-flash for chats: docs/clouds.md
  "claude-*": {routes: [{upstream: vertex-claude}], endpoints: [messages, chat], max_output_tokens: 8192}
  "gemini-*": {routes: [{upstream: vertex-gemini}], endpoints: [generate_content], max_output_tokens: 8192}
  "*/*": {routes: [{upstream: vertex-chat}], endpoints: [chat, responses, messages], max_output_tokens: 8192}"""


def shown(upstreams: Mapping[str, Mapping[str, object]]) -> list[str]:
    """The upstreams as lines of the file."""
    return [f"{json.dumps(name)}: {_flow(settings)}" for name, settings in upstreams.items()]


def _flow(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join([f"{name}: {_flow(item)}" for name, item in value.items()]) + "}"
    return str(value) if not isinstance(value, str) or re.fullmatch(r"[a-z_-]+", value) else json.dumps(value)


def _draft(url: str, key_variable: str | None, is_keyless: bool, ask: Ask | None) -> tuple[Sequence[str], str] | None:
    """The lines of upstreams, and the models, for the address of a cloud."""
    if (cloud := cloud_of(url)) is None:
        return None
    known = CLOUDS[cloud].key_variables
    found = next((name for name in known if os.environ.get(name)), "-")
    if known and ask is not None and key_variable is None and not is_keyless:
        found = ask("Name of the environment variable with an API key (- for the cloud's own credentials)", found)
    variable = None if is_keyless else key_variable or (found if found != "-" else None)
    upstreams, models = upstreams_of(cloud, url, variable)
    return shown(upstreams), models


def _problems(text: str) -> Sequence[str]:
    """Asks the cloud as `gateway check --online` does."""
    try:
        config = build(resolve(text, os.environ).values)
    except ConfigError as error:
        return list(dict.fromkeys(fault.message for fault in error.faults))
    hosts = dict.fromkeys(urlsplit(each.base_url).hostname for each in config.upstreams.values())
    print(f"Asking {', '.join(map(str, hosts))} ...", file=sys.stderr, flush=True)
    asked = asyncio.run(ask_all(config, spends=False))
    print("".join([f"{line}\n" for line in lines_of(asked)]), end="", file=sys.stderr)
    return [f"{each.what}: {each.came}" for each in asked if not each.is_good]


INIT = SimpleNamespace(words=CLOUDS.keys(), address=address_of, draft=_draft, problems=_problems)
"""The part of `gateway init` for addresses without a list of models."""
