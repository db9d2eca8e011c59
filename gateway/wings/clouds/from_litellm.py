"""Entries of `azure/`, `azure_ai/`, `bedrock/`, `bedrock_mantle/` and `vertex_ai/` of LiteLLM's file, for
`gateway import litellm`.

The names and their order are those of LiteLLM 1.110.2: `llms/azure/common_utils.py` (`get_azure_ad_token`),
`llms/azure_ai/common_utils.py` and `chat/transformation.py` (`get_complete_url`), `llms/bedrock/base_aws_llm.py`
(`get_credentials`, `get_runtime_endpoint`) and `common_utils.py`, `llms/bedrock_mantle/common_utils.py`
(`resolve_mantle_region`, `mantle_base_segment`), `llms/vertex_ai/vertex_llm_base.py` (`load_auth`, `create_vertex_url`)
and `vertex_ai_partner_models/main.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from gateway.config.faults import printable
from gateway.config.include import Place

VARIABLE = re.compile(r"os\.environ/(\w+)")
AT_LITELLM = "keep LiteLLM as an upstream for it"

_CLAUDE: Mapping[str, Any] = {"chat": "via_messages"}
_CHATS: Mapping[str, Any] = {
    "completions": "via_chat", "responses": "via_chat", "messages": "via_chat", "embeddings": False,
}  # fmt: skip
"""gpt-oss has Responses at bedrock-mantle alone (AWS, "Responses API"), and Vertex AI's chats have none."""

OF_CLAUDE, OF_CHATS = ("chat", "messages"), ("chat", "responses", "messages")

VERTEX_CHATS = (
    "meta/*", "deepseek-ai/*", "qwen/*", "openai/gpt-oss-*", "minimaxai/*", "moonshotai/*", "zai-org/*",
    "google/gemma-*",
)  # fmt: skip
"""Models of others at Vertex AI that LiteLLM calls at `endpoints/openapi`."""

PRICED_REGIONS = ("us-east-1", "us-west-2")
_NAMED_REGION = re.compile(r"[a-z]{2,6}\.[a-z0-9-]+\..+")
"""An inference profile: the table has prices of these by the kind of region in their names."""
_BEDROCK = re.compile(r"(?:(?:converse|invoke|chat_completions)/)?(?:([a-z]{2}(?:-[a-z]+)+-\d)/)?(.+)")
_ARN = re.compile(r"arn:aws[a-z-]*:bedrock:([a-z0-9-]+):.+")

_MANTLE = re.compile(r"https://bedrock-mantle\.([a-z0-9-]+)\.api\.aws", re.IGNORECASE)
_MANTLE_PATH = re.compile(r"(/anthropic|/openai)?(/v1)?(/messages|/responses|/chat/completions)?$")
AT_OPENAI_PATH = ("openai.gpt-[5-9]*", "openai.gpt-daybreak-*", "google.gemma-4-*", "xai.grok-*")
"""Models of bedrock-mantle below `/openai/v1`; others are below `/v1` (LiteLLM, model_prices_and_context_window.json,
`use_openai_responses_path`)."""
WITH_RESPONSES = (*AT_OPENAI_PATH, "openai.gpt-oss-[0-9]*")
"""Models of bedrock-mantle with Responses (`supported_endpoints` of the same list)."""
RESPONSES_ALONE = ("openai.gpt-*-cyber", "openai.gpt-daybreak-*")

FOUNDRY_HOSTS = (".services.ai.azure.com", ".openai.azure.com")
"""Hosts with OpenAI's v1 API and the header `api-key` (LiteLLM, `is_azure_openai_v1_host`)."""


class CloudEntry(NamedTuple):
    """An entry that can be converted."""

    settings: dict[str, Any]
    """The upstream without its key."""
    model: str
    endpoints: tuple[str, ...] = ()
    """Empty: those of its provider."""
    key: str | None = None
    further: tuple[tuple[dict[str, Any], str], ...] = ()
    """Upstreams for other endpoints, with the model's name there."""


class Values:
    """The settings of one entry, and behind them those of the credential that it names. `given` is the whole file."""

    def __init__(self, given: Any, place: Place, credential: tuple[Place, Mapping[str, Any]]) -> None:
        self.given = given
        self.place = place
        self.params = (*place, "litellm_params")
        self._place, self._credential = credential

    def take(self, *names: str) -> Any:
        """The first of these that is there; all of them count as converted."""
        own = [self.given.take(*self.params, name) for name in names]
        return next((each for each in [*own, *map(self._credential.get, names)] if each is not None), None)

    def plain(self, *names: str) -> Any:
        return self.given.plain(self.take(*names))

    def secret(self, name: str, variable: str) -> str | None:
        """`${NAME}` for a secret; None: it is not there."""
        value = self.take(name)
        place = self.params if self.given.take(*self.params, name) is not None else self._place
        found: str | None = None if value is None else self.given.reference((*place, name), value, variable)
        return found

    def note(self, name: str, why: str) -> None:
        self.given.note((*self.params, name), why)


# -------------------------------------------------------------------------------------------------------------- Azure


def with_version(values: Values, base: str) -> dict[str, Any] | None:
    """The paths of deployments below an address that is none of Azure's own, such as Azure API Management: there may be
    no others. None: the v1 API serves, which needs no version."""
    host = "" if "${" in base else urlsplit(base).hostname or ""
    version = values.plain("api_version") if host and not host.endswith(".azure.com") else None
    if version in (None, "v1", "latest", "preview"):
        return None
    base = re.sub(r"/openai(/.*)?$", "", base)
    return {"base_url": f"{base}/openai", "paths": "azure", "api_version": str(version)}


def authorize_azure(values: Values, settings: dict[str, Any]) -> tuple[str | None, str | None]:
    """Writes the `auth` of an entry into its upstream. The key in place of `api_key`, if its token is one; and the
    reason why it cannot be converted."""
    tenant, client = values.plain("tenant_id"), values.plain("client_id")
    secret = values.secret("client_secret", "AZURE_CLIENT_SECRET")
    scope, token = values.plain("azure_scope"), values.take("azure_ad_token")
    auth: dict[str, Any] | None = None
    if tenant and client and secret:
        auth = {"tenant_id": tenant, "client_id": client, "client_secret": secret}
    elif values.take("azure_username", "azure_password") is not None:
        return None, f"Entra ID by a user's password is not there: write a client_secret; or {AT_LITELLM}"
    elif isinstance(token, str) and token.startswith("oidc/"):
        auth = {"client_id": client} if client else {}
        values.note("azure_ad_token", "a workload identity is found by AZURE_TENANT_ID and AZURE_FEDERATED_TOKEN_FILE")
    elif token is not None:
        settings.pop("key_header", None)
        values.note("azure_ad_token", "is valid for about an hour; auth: azure renews one by itself (docs/clouds.md)")
        return values.secret("azure_ad_token", "AZURE_AD_TOKEN"), None
    elif values.take("api_key") is None:
        refreshes = values.given.take("litellm_settings", "enable_azure_ad_token_refresh")
        auth = {} if refreshes is True else None
    if auth is None:
        return None, None
    settings.pop("key_header", None)
    settings["auth"] = _auth("azure", auth | ({"scopes": [scope]} if scope else {}))
    return None, None


def _auth(kind: str, settings: Mapping[str, Any]) -> Any:
    return {"type": kind, **settings} if settings else kind


# ------------------------------------------------------------------------------------------------------------ Bedrock


def bedrock(values: Values, model: str, base_model: Any) -> CloudEntry | str:
    """Claude by InvokeModel, and OpenAI's models by chat; a string: the reason why it is neither."""
    found = _BEDROCK.fullmatch(model)
    region_of_name, named = found.groups() if found else (None, model)
    name = values.plain("model_id") or named
    arn = _ARN.fullmatch(name)
    is_claude, is_openai = (f"{word}." in f"{named} {name} {base_model}" for word in ("anthropic", "openai"))
    if (not is_claude and not is_openai) or ("/" in name and arn is None):
        kind = " (its model is not in its name: write it into model_info.base_model)" if arn else ""
        return f"the gateway speaks with Claude and with OpenAI's models at Bedrock alone{kind}; {AT_LITELLM}"
    region = values.plain("aws_region_name", "region_name") or region_of_name or (arn[1] if arn else None)
    if region is None:
        region = values.given.variable("AWS_REGION")
        values.note("model", "names no region: put it into the environment variable AWS_REGION")
    key = values.secret("api_key", "AWS_BEARER_TOKEN_BEDROCK")
    base = values.plain("api_base", "aws_bedrock_runtime_endpoint")
    settings: dict[str, Any] = {"base_url": base or f"https://bedrock-runtime.{region}.{_suffix_of(region)}"}
    auth = {} if key is not None else _aws(values)
    if base is not None:
        settings["base_url"] = re.sub(r"/openai/v1$", "", str(base).rstrip("/"))
        settings |= {"paths": "bedrock"} if is_claude else {}
        auth |= {"region": region} if key is None else {}
    settings["base_url"] += "" if is_claude else "/openai/v1"
    settings |= {"provider": "aws", "capabilities": dict(_CLAUDE if is_claude else _CHATS)}
    if key is None:
        settings["auth"] = _auth("aws", auth)
    if region not in PRICED_REGIONS and (arn or not _NAMED_REGION.fullmatch(name)):
        values.note("model", f"has the price of {' and '.join(PRICED_REGIONS)}; write models.NAME.price if it differs")
    return CloudEntry(settings, name, OF_CLAUDE if is_claude else OF_CHATS, key)


def _suffix_of(region: str) -> str:
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"


def _aws(values: Values) -> dict[str, Any]:
    """The credentials of an entry. Those that botocore's chain finds under the same names are not repeated."""
    auth: dict[str, Any] = {}
    names = {"access_key_id": "AWS_ACCESS_KEY_ID", "secret_access_key": "AWS_SECRET_ACCESS_KEY"}
    own = {name: values.take(f"aws_{name}") for name in names}
    is_of_chain = all(own[name] == f"os.environ/{variable}" for name, variable in names.items())
    for name, variable in (names | {"session_token": "AWS_SESSION_TOKEN"}).items() if all(own.values()) else ():
        if (taken := values.take(f"aws_{name}")) is not None and is_of_chain:
            values.given.variable(VARIABLE.sub(r"\1", taken))
        elif taken is not None:
            auth[name] = values.secret(f"aws_{name}", variable)
    if (profile := values.plain("aws_profile_name")) is not None:
        auth["profile"] = profile
    role = values.plain("aws_role_name")
    if values.take("aws_web_identity_token") is not None:
        values.note(
            "aws_web_identity_token",
            f"a web identity is found by AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN{f' ({role})' if role else ''}",
        )
    elif role is not None:
        auth |= {"role_arn": role}
        auth |= {"external_id": external} if (external := values.plain("aws_external_id")) is not None else {}
    return auth


def mantle(values: Values, model: str, base_model: Any) -> CloudEntry | str:
    """Models of bedrock-mantle: Claude by Messages, all others by chat or Responses."""
    found = _BEDROCK.fullmatch(model)
    region_of_name, name = found.groups() if found else (None, model)
    base = values.plain("api_base")
    named = _MANTLE.match(str(base))
    region = values.plain("aws_region_name") or region_of_name or (named[1] if named else None)
    if region is None:
        region = values.given.variable("AWS_REGION")
        values.note("model", "names no region: put it into the environment variable AWS_REGION")
    is_own = base is not None and named is None
    root = _MANTLE_PATH.sub("", str(base).rstrip("/")) if is_own else f"https://bedrock-mantle.{region}.api.aws"
    key = values.secret("api_key", "AWS_BEARER_TOKEN_BEDROCK")
    settings: dict[str, Any] = {"provider": "aws"}
    if key is None:
        settings["auth"] = _auth(
            "aws", _aws(values) | ({"region": region, "service": "bedrock-mantle"} if is_own else {})
        )
    if (project := values.plain("aws_bedrock_project_id")) is not None:
        settings["headers"] = {"OpenAI-Project": project}
    if region not in PRICED_REGIONS:
        values.note("model", f"has the price of {' and '.join(PRICED_REGIONS)}; write models.NAME.price if it differs")
    if "claude" in name.lower():
        settings |= {"base_url": f"{root}/anthropic/v1", "capabilities": dict(_CLAUDE)}
        return CloudEntry(settings, name, OF_CLAUDE, key)
    able = dict(_CHATS)
    if _is_one_of(name, WITH_RESPONSES):
        del able["responses"]
    settings["base_url"] = f"{root}/openai/v1" if _is_one_of(name, AT_OPENAI_PATH) else f"{root}/v1"
    if _is_one_of(name, RESPONSES_ALONE):
        return CloudEntry(settings | {"capabilities": {"chat": False, "embeddings": False}}, name, ("responses",), key)
    return CloudEntry(settings | {"capabilities": able}, name, OF_CHATS, key)


def _is_one_of(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


# ---------------------------------------------------------------------------------------------------------- Vertex AI


def vertex(values: Values, model: str, base_model: Any) -> CloudEntry | str:
    """Claude, Gemini, and the models of others that have chats; a string: the reason why it is none of them."""
    kind = next((kind for pattern, kind in _VERTEX_KINDS if fnmatchcase(model, pattern)), None)
    if kind is None:
        return f"Vertex AI has another form for {printable(model)} than those of the gateway; {AT_LITELLM}"
    if values.take("api_base") is not None:
        return "its api_base leads to another address: write its upstream as docs/clouds.md has it"
    given = values.given
    shared = {name: given.take("litellm_settings", f"vertex_{name}") for name in ("project", "location")}
    project = values.plain("vertex_project", "vertex_ai_project") or given.plain(shared["project"])
    location = values.plain("vertex_location", "vertex_ai_location", "region_name") or given.plain(shared["location"])
    if location is None:
        location = "us-central1"
        values.note("model", "names no location: us-central1, as LiteLLM has it where its list of models has no other")
    elif "${" in location:
        values.note("vertex_location", "for the location global write the host aiplatform.googleapis.com")
    root = f"https://{_host_of(location)}/v1/projects/{project or given.variable('VERTEXAI_PROJECT')}"
    root = f"{root}/locations/{location}"
    auth: dict[str, Any] = {"auth": _google(values)}
    if location != "global":
        auth["provider"] = "google"
        values.note("model", "has the price of the location global; write models.NAME.price if it differs")
    chats: dict[str, Any] = {"base_url": f"{root}/endpoints/openapi", **auth, "capabilities": dict(_CHATS)}
    if kind == "claude":
        claude = {"base_url": f"{root}/publishers/anthropic", **auth, "capabilities": dict(_CLAUDE)}
        return CloudEntry(claude, model, OF_CLAUDE)
    if kind == "chats":
        return CloudEntry(chats, model, OF_CHATS)
    own = {"base_url": f"{root}/publishers/google", **auth}
    return CloudEntry(chats, f"google/{model}", (*OF_CHATS, "generate_content"), further=((own, model),))


_VERTEX_KINDS = (("claude*", "claude"), ("gemini-*", "gemini"), *((pattern, "chats") for pattern in VERTEX_CHATS))


def _host_of(location: str) -> str:
    """The host of a location: of a region, of a geography, or of all of them (LiteLLM, `get_vertex_base_url`)."""
    if location == "global":
        return "aiplatform.googleapis.com"
    return (
        f"{location}-aiplatform.googleapis.com" if "-" in location or "${" in location
        else f"aiplatform.{location}.rep.googleapis.com"
    )  # fmt: skip


def _google(values: Values) -> Any:
    """The `auth` of an entry: LiteLLM takes a path, the text of such a file, or its content as settings."""
    taken = values.take("vertex_credentials", "vertex_ai_credentials")
    if taken in (None, "os.environ/GOOGLE_APPLICATION_CREDENTIALS"):
        return "google"
    named = VARIABLE.fullmatch(taken.strip()) if isinstance(taken, str) else None
    if named is None and isinstance(taken, str) and not taken.lstrip().startswith("{"):
        return {"type": "google", "file": taken}
    variable = named[1] if named else "GOOGLE_CREDENTIALS_FILE"
    values.note("vertex_credentials", f"write the credentials into a file, and its path into the variable {variable}")
    return {"type": "google", "file": values.given.variable(variable)}


_CLOUDS: Mapping[str, Callable[[Values, str, Any], CloudEntry | str]] = {
    "bedrock": bedrock, "bedrock_mantle": mantle, "vertex_ai": vertex, "vertex_ai_beta": vertex,
}  # fmt: skip
"""The function for each prefix: it takes the settings, the model, and `model_info.base_model`."""


def _at_cloud(
    prefix: str, given: Any, place: Place, credential: Any, model: str, mode: Any, settings: dict[str, Any]
) -> CloudEntry | str:
    """Converts an entry of Bedrock or Vertex AI: `settings` keeps its headers and timeouts."""
    if mode not in (None, "chat", "completion", "responses"):
        return f"{mode} of {prefix} has a form of its own; {AT_LITELLM}"
    if "*" in model:
        return "this pattern does not name the model at the provider; write a model for each name"
    values = Values(given, place, credential)
    made = _CLOUDS[prefix](values, model, given.take(*place, "model_info", "base_model"))
    if isinstance(made, str):
        return made
    more = {name: settings[name] for name in ("headers", "timeouts") if name in settings}
    if "headers" in made.settings:
        more["headers"] = made.settings["headers"] | more.get("headers", {})
    settings.clear()
    settings |= made.settings | more
    return made


def _at_azure(
    given: Any, place: Place, credential: Any, model: str, mode: Any, settings: dict[str, Any]
) -> CloudEntry | str:
    """Adds the authorization of an entry of Azure, and its version where its address needs one."""
    values = Values(given, place, credential)
    settings |= with_version(values, str(values.plain("api_base", "base_url")).rstrip("/")) or {}
    key, why = authorize_azure(values, settings)
    return why if why is not None else CloudEntry(settings, model, key=key)


def _at_foundry(
    given: Any, place: Place, credential: Any, model: str, mode: Any, settings: dict[str, Any]
) -> CloudEntry | str:
    """Converts an entry of Foundry. OpenAI's v1 API has taken the place of `/models` (Microsoft, "Endpoints for
    Microsoft Foundry Models"); Claude and Cohere's reranks have their own paths, and serverless endpoints chats alone.
    """
    values, name = Values(given, place, credential), re.sub(r"^model[_-]router/", "", model)
    if "/" in name or "*" in name:
        return f"{printable(model)} has a form of its own at Foundry; {AT_LITELLM}"
    if mode == "image_generation" and not _is_one_of(name.lower(), ("gpt-image-*", "dall-e-*")):
        return f"images of {printable(name)} have a form of their own at Foundry; {AT_LITELLM}"
    base = values.plain("api_base", "base_url") or given.variable("AZURE_AI_API_BASE")
    url = str(base).partition("?")[0].rstrip("/")
    host = "" if "${" in url else urlsplit(url).hostname or ""
    endpoints: tuple[str, ...] = ()
    if "claude" in name.lower():
        root = re.sub(r"/anthropic(/.*)?$|/v1/messages$", "", url)
        settings |= {"base_url": f"{root}/anthropic/v1", "key_header": "x-api-key", "capabilities": dict(_CLAUDE)}
        endpoints = OF_CLAUDE
    elif mode == "rerank":
        root = url.removesuffix("/rerank")
        settings["base_url"] = root if root.endswith(("/v1", "/v2")) else f"{root}/v1"
    elif host and not host.endswith(FOUNDRY_HOSTS):
        settings["base_url"] = url.removesuffix("/chat/completions")
        if mode in (None, "chat"):
            settings["capabilities"], endpoints = dict(_CHATS), OF_CHATS
    else:
        root = f"https://{host}" if host else url
        settings |= {"base_url": f"{root}/openai/v1", "key_header": "api-key", "provider": "azure"}
        values.take("api_version")
        if not urlsplit(url).path.startswith("/openai/v1"):
            values.note("api_base", "is asked at /openai/v1, which has replaced /models and needs no api_version")
    key, why = authorize_azure(values, settings)
    return why if why is not None else CloudEntry(settings, name, endpoints, key)


LITELLM = SimpleNamespace(
    kinds={"azure": _at_azure, "azure_text": _at_azure, "azure_ai": _at_foundry}
    | {name: partial(_at_cloud, name) for name in _CLOUDS}
)
"""The functions of the importer for entries of these providers."""
