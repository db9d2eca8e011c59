"""Ways in beside models: tokens of an identity provider, defaults of keys, and pass-through endpoints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from gateway.config.include import Place

from .budgets import budget_of, number_of, plain, rates_of, seconds_of
from .given import VARIABLE, Given, section_of

JWT_VARIABLES = ("JWT_ISSUER", "JWT_AUDIENCE", "JWT_PUBLIC_KEY_URL")
"""Where LiteLLM has them (`proxy/auth/handle_jwt.py`)."""

OWN_PATHS = re.compile(r"/(v1|v2|openai|v1beta)(/|$)|/(rerank|metrics|dashboard|admin|healthz|readyz|livez)(/|$)")
"""Paths that the gateway answers itself."""

WRITTEN_BY_US = frozenset({"content-type", "accept", "content-length", "host"})
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH")


def convert_access(given: Given) -> dict[str, Any]:
    """Write all of them into the result; returns `defaults.keys`."""
    _tokens(given)
    endpoints = section_of(given.values, "general_settings").get("pass_through_endpoints")
    for index, endpoint in enumerate(endpoints if isinstance(endpoints, list) else []):
        _pass_through(given, ("general_settings", "pass_through_endpoints", index), section_of(endpoint))
    return _key_defaults(given)


def _tokens(given: Given) -> None:
    """Converts `enable_jwt_auth` to the section `jwt`."""
    if given.take("general_settings", "enable_jwt_auth") is not True:
        return
    place: Place = ("general_settings", "litellm_jwtauth")
    issuers = given.take(*place, "issuers")
    first = section_of(issuers[0]) if isinstance(issuers, list) and issuers else {}
    issuer, audience, address = [
        given.plain(first.get(name)) or given.variable(variable)
        for name, variable in zip(("issuer", "audience", "jwks_url"), JWT_VARIABLES, strict=True)
    ]
    jwt: dict[str, Any] = {
        "issuer": issuer,
        "audiences": audience if isinstance(audience, list) else [audience],
        "jwks_url": address,
    }
    person = given.take(*place, "user_email_jwt_field") or given.take(*place, "user_id_jwt_field")
    if isinstance(person, str):
        jwt["person_claim"] = person
    if isinstance(team := given.take(*place, "team_id_jwt_field"), str):
        jwt["team_claim"] = team
    given.take(*place, "user_id_upsert")
    given.done.values["jwt"] = jwt
    given.note(
        ("general_settings", "enable_jwt_auth"),
        "is the section jwt: it needs one address of the keys themselves, an issuer and an audience, the teams of "
        "team_claim in teams, and the extra oidc",
    )
    if isinstance(issuers, list) and len(issuers) > 1:
        given.note((*place, "issuers"), "one issuer alone is served; the first one is converted")


def _key_defaults(given: Given) -> dict[str, Any]:
    place: Place = ("litellm_settings", "default_key_generate_params")
    params = section_of(given.values, *map(str, place))
    defaults: dict[str, Any] = {}
    if isinstance(models := given.take(*place, "models"), list) and models:
        defaults["models"] = [str(each) for each in models]
    if (seconds := seconds_of(given.take(*place, "duration"))) is not None:
        defaults["expires_after_s"] = seconds
    if (number := number_of(given.take(*place, "max_parallel_requests"))) is not None and number >= 1:
        defaults["max_parallel"] = int(number)
    quota, note = budget_of(given.take(*place, "max_budget"), given.take(*place, "budget_duration"))
    quotas = [*([quota] if quota is not None else []), *rates_of(params)]
    for name in ("rpm_limit", "tpm_limit", "tpd_limit"):
        given.take(*place, name)
    if note:
        given.note((*place, "max_budget"), note)
    if quotas:
        defaults["quotas"] = quotas
    return defaults


def _pass_through(given: Given, place: Place, endpoint: Mapping[str, Any]) -> None:
    """A row of `passthrough` where one can express it, else a note."""
    path, target = given.take(*place, "path"), given.plain(given.take(*place, "target"))
    if not isinstance(path, str) or not isinstance(target, str):
        given.skip(place, "has no path or no target")
        return
    path = path.rstrip("/")
    if OWN_PATHS.match(path):
        given.skip(place, f"{path} is a path of the gateway itself: write a model with that endpoint, or another path")
        return
    if "${" in target:
        given.skip(place, f"{path}: its target is in a variable; write a row of passthrough with its address")
        return
    address = urlsplit(target.rstrip("/"))
    is_tree = given.take(*place, "include_subpath") is True
    above, _, last = path.rpartition("/")
    there, _, last_there = address.path.rpartition("/")
    if not re.fullmatch(r"(/[\w.~-]+)+", path) or (not is_tree and (last != last_there or not last)):
        given.skip(
            place, f"{path}: path and target end differently; write a row of passthrough by hand (docs/tasks.md)"
        )
        return
    name = re.sub(r"[^a-zA-Z0-9_-]", "-", path.strip("/"))
    upstream = f"{name}-target"
    given.done.values["upstreams"][upstream] = {
        "base_url": f"{address.scheme}://{address.netloc}", **_headers(given, place, name),
    }  # fmt: skip
    if (seconds := number_of(given.take(*place, "timeout"))) is not None and seconds > 0:
        given.done.values["upstreams"][upstream]["timeouts"] = {"total_s": plain(seconds)}
    methods = given.take(*place, "methods")
    methods = [str(each).upper() for each in methods] if isinstance(methods, list) and methods else list(METHODS)
    cost = number_of(given.take(*place, "cost_per_request"))
    given.done.values.setdefault("passthrough", {})[name] = {
        "upstream": upstream,
        "prefix": path if is_tree else above,
        "upstream_prefix": address.path if is_tree else there,
        "submit": [f"{method} /{'{rest*}' if is_tree else last}" for method in methods if method in METHODS],
        "prices": [{"task": plain(cost) if cost else 0}],
    }
    given.take(*place, "auth")
    given.take(*place, "forward_headers")
    given.note(
        place,
        f"{path} is the row passthrough.{name}: each call costs what prices has, and needs a key that may use {name}",
    )


def _headers(given: Given, place: Place, name: str) -> dict[str, Any]:
    """The key and the headers of the upstream of a pass-through endpoint."""
    found: dict[str, Any] = {}
    headers = given.take(*place, "headers")
    for header, value in headers.items() if isinstance(headers, dict) else ():
        where, text = (*place, "headers", header), str(value)
        variable = re.sub(r"\W", "_", f"{name}_{header}").upper()
        if str(header).lower() == "authorization":
            scheme = re.match(r"(?i)bearer\s+", text)
            found["api_key"] = given.reference(where, text[scheme.end() :] if scheme else text, variable)
            if scheme is None and VARIABLE.fullmatch(text):
                given.note(where, "its value is the key alone here, without Bearer")
        elif str(header).lower() not in WRITTEN_BY_US:
            found.setdefault("headers", {})[str(header)] = given.reference(where, value, variable)
    return found
