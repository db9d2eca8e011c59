"""A table of mistakes: each is reported with its place and its cause or remedy, as a fault or as a warning."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.config import ConfigError, build
from gateway.config.checks import HABITS
from gateway.config.probable_mistakes import warnings_of
from gateway.config.secret_forms import FORMS
from gateway.config.sections.values import CAUSES

NOW = datetime(2026, 11, 23, tzinfo=UTC)
SECRET = "a-secret-of-28-characters-001"
TOKEN = "f3a91c7be2d84056"
IN_BASE64 = base64.b64encode(b"sk-proj-0123456789abcdef").decode()


def values(place: str, value: Any) -> dict[str, Any]:
    """A configuration without warnings, and a value at a place of it."""
    whole: dict[str, Any] = {
        "server": {},
        "store": {},
        "admin": {},
        "upstreams": {"up": {"base_url": "https://api.openai.com/v1", "api_key": "sk-1"}},
        "models": {
            "m": {"routes": [{"upstream": "up"}], "max_output_tokens": 1000, "price": {"input": 2, "output": 8}}
        },
        "keys": [{"id": "alice", "secret": SECRET}],
    }
    at: Any = whole
    *above, last = [int(part) if part.isdigit() else part for part in place.split("/")]
    for part in above:
        at = at[part] if isinstance(part, int) else at.setdefault(part, {})
    at[last] = value
    return whole


FAULTS = [
    # Secrets that no header can hold.
    ("upstreams/up/api_key", "", "is empty"),
    ("upstreams/up/api_key", "  ", "is empty"),
    ("upstreams/up/api_key", "\ufeffsk-1", "byte order mark"),
    ("upstreams/up/api_key", "Bearer sk-1", "'Bearer '"),
    ("upstreams/up/api_key", "bearer sk-1", "'Bearer '"),
    ("upstreams/up/api_key", "{{ .Values.key }}", "a template that was not filled"),
    ("upstreams/up/api_key", "<%= key %>", "a template that was not filled"),
    ("upstreams/up/api_key", "sk-1\nsk-2", "has several lines"),
    ("upstreams/up/api_key", "sk-1\n", "ends with a line break"),
    ("upstreams/up/api_key", " sk-1", "begins with a blank"),
    ("upstreams/up/api_key", "sk-1 ", "ends with a blank"),
    ("upstreams/up/api_key", "sk-1\t", "ends with a blank"),
    ("upstreams/up/api_key", "sk\u00a01", "a blank that is not seen"),
    ("upstreams/up/api_key", "sk-1\u200b", "a blank that is not seen"),
    ("upstreams/up/api_key", "\u201csk-1\u201d", "typographic quotes"),
    ("upstreams/up/api_key", "sk\u20131", "a typographic dash"),
    ("upstreams/up/api_key", "sk 1", "holds a blank"),
    ("upstreams/up/api_key", "sk-\u00e4", "expected visible ASCII"),
    ("admin/token", "", "is empty"),
    ("admin/token", "Bearer 0123456789abcdef", "'Bearer '"),
    ("keys/0/secret", "a-secret-of-28-characters-001 ", "ends with a blank"),
    # Addresses and paths.
    ("server/host", "[::]", "without brackets: '::'"),
    ("server/host", "localhost:8080", "the port is server.port"),
    ("server/host", "[::1]:8080", "the port is server.port"),
    ("server/host", "http://0.0.0.0", "without http://"),
    ("server/host", "0.0.0.0 ", "such as 127.0.0.1"),
    ("server/host", "10.0.0.0/8", "such as 127.0.0.1"),
    ("store/url", "embedded:~/data", "~ is no folder here"),
    ("store/journal_dir", "~/journal", "~ is no folder here"),
    # Names of other programs.
    ("server/listen", "0.0.0.0:80", "server.host, server.port"),
    ("server/bind", "0.0.0.0:80", "server.host, server.port"),
    ("server/tls_cert", "/x", "put nginx, Caddy or an ingress in front"),
    ("server/ssl_certfile", "/x", "put nginx, Caddy or an ingress in front"),
    ("server/log_level", "debug", "server.access_log"),
    ("upstreams/up/api_base", "https://x", "it is base_url"),
    ("upstreams/up/url", "https://x", "the address of an upstream is base_url"),
    ("upstreams/up/endpoint", "https://x", "the address is base_url"),
    ("models/m/price/output_cost_per_token", 5, "it is output, in USD per million tokens"),
    ("upstreams/up/token", "x", "the key of an upstream is api_key"),
    ("upstreams/up/timeout", 5, "timeouts: {connect_s"),
    ("models/m/num_retries", 5, "max_attempts"),
    ("models/m/price/prompt", 5, "the price of prompt tokens is input"),
    ("models/m/price/completion", 5, "the price of completion tokens is output"),
    ("models/m/price/input_cost_per_token", 5, "in USD per million tokens"),
    ("keys/0/budget", 5, "a budget is a quota"),
    ("keys/0/max_budget", 5, "a budget is a quota"),
    ("keys/0/rpm", 5, "a rate is a quota"),
    ("keys/0/tpm", 5, "{tokens: 100000, per: minute}"),
    ("keys/0/quotas", [{"eur": 5, "per": "day"}], "money is in US dollars"),
    ("model_list", [], "gateway import litellm FILE converts it"),
    ("litellm_settings", {}, "gateway import litellm FILE converts it"),
    ("providers", {}, "providers are upstreams"),
    ("redis", "x", "store.url: redis://host:6379/0"),
]
WARNINGS = [
    # Secrets by their form.
    ("upstreams/up/api_key", "ENC[AES256_GCM,data:abc,iv:def,tag:g,type:str]", "sops"),
    ("upstreams/up/api_key", IN_BASE64, "is base64"),
    ("upstreams/up/api_key", "OPENAI_API_KEY=sk-1", "leave out NAME="),
    ("upstreams/up/api_key", '"sk-1"', "has quotes around it"),
    ("upstreams/up/api_key", "'sk-1'", "has quotes around it"),
    ("upstreams/up/api_key", "sk-ant-api03-0123456789", "the form of a key of anthropic, and is sent to openai"),
    ("upstreams/up/api_key", "gsk_0123456789", "the form of a key of groq"),
    ("upstreams/up/api_key", "AIzaSy0123456789", "the form of a key of google"),
    ("upstreams/up/api_key", "sk-or-v1-0123456789", "the form of a key of openrouter"),
    ("upstreams/up/api_key", "pplx-0123456789", "the form of a key of perplexity"),
    ("upstreams/up/api_key", "sk-gw-0123456789", "is a key of a gateway such as this one"),
    ("upstreams/up/api_key", "/run/secrets/openai", "${file:/path}"),
    ("upstreams/up/api_key", "-----BEGIN-PRIVATE-KEY-----", "in PEM"),
    ("keys/0/secret", "$2b$12$" + "a" * 53, "is a bcrypt hash"),
    ("keys/0/secret", "$argon2id$v=19$m=65536,t=3,p=4$c29tZXNhbHQ$abc", "is an argon2 hash"),
    ("keys/0/secret", "ab" * 32, "looks like a SHA-256"),
    ("admin/token", "GATEWAY_ADMIN_TOKEN=abcdef0123456789", "leave out NAME="),
    # Tokens that are easy to guess.
    ("admin/token", "password12345678", "easy to guess"),
    ("admin/token", "admin-token-12345", "easy to guess"),
    ("admin/token", "aaaaaaaaaaaaaaaa", "easy to guess"),
    ("admin/token", "1234567812345678", "easy to guess"),
    ("admin/tokens", {"ci": {"token": "changeit12345678", "role": "viewer"}}, "easy to guess"),
    # Addresses.
    ("server", {"public_url": "https://gateway.example.org/v1"}, "ends in /v1"),
    ("server", {"public_url": "https://gateway.example.org/v1/"}, "ends in /v1"),
    ("models/m/price", {"input": 8, "output": 2}, "probably exchanged"),
]


def messages_of(place: str, value: Any) -> list[str]:
    try:
        return [str(warning) for warning in warnings_of(build(values(place, value)), NOW)]
    except ConfigError as error:
        return [str(fault) for fault in error.faults]


@pytest.mark.parametrize(("place", "value", "cause"), FAULTS)
def test_a_fault_has_its_cause(place: str, value: Any, cause: str) -> None:
    with pytest.raises(ConfigError) as raised:
        build(values(place, value))
    assert cause in str(raised.value)


@pytest.mark.parametrize(("place", "value", "cause"), WARNINGS)
def test_a_probable_mistake_has_a_warning(place: str, value: Any, cause: str) -> None:
    found = warnings_of(build(values(place, value)), NOW)
    assert any(cause in warning.message for warning in found), found


def test_a_public_admin_api_needs_tls_or_an_address_of_its_own() -> None:
    given = values("admin", {"token": TOKEN})
    given["server"] = {"host": "0.0.0.0"}
    assert "put TLS in front" in " ".join(map(str, warnings_of(build(given), NOW)))
    given["server"]["public_url"] = "https://gateway.example.org"
    assert warnings_of(build(given), NOW) == []
    given["server"]["public_url"] = None
    given["admin"]["listen"] = "0.0.0.0:9090"
    assert warnings_of(build(given), NOW) == []


GOOD = [
    ("upstreams/up/api_key", "sk-proj-0123456789"),
    ("upstreams/up", {"base_url": "https://other.example/v1", "api_key": "sk-gw-0123456789"}),
    ("upstreams/up", {"base_url": "https://other.example/v1", "api_key": "sk-ant-0123456789"}),
    ("admin/token", TOKEN),
    ("server", {"public_url": "https://gateway.example.org"}),
    ("server/host", "::"),
    ("server/host", "gateway-1.internal"),
    ("models/m/price", {"input": 2, "output": 0}),
]


@pytest.mark.parametrize(("place", "value"), GOOD)
def test_what_is_right_has_no_warning(place: str, value: Any) -> None:
    assert messages_of(place, value) == []


def test_no_message_shows_a_secret() -> None:
    for place, value, _ in [*FAULTS, *WARNINGS]:
        if place.endswith(("/api_key", "/secret", "admin/token")) and len(value.strip()) > 8:
            assert value.strip() not in " ".join(messages_of(place, value)), place


def test_each_row_of_the_tables_has_a_mistake() -> None:
    everything = " ".join(message for place, value, _ in [*FAULTS, *WARNINGS] for message in messages_of(place, value))
    assert [cause for _, cause in CAUSES if cause not in everything] == []
    assert [sentence for _, sentence in FORMS if sentence not in everything] == []
    assert set(HABITS.values()) - {hint for hint in HABITS.values() if hint in everything} <= {HABITS["database"]}
    assert len(FAULTS) + len(WARNINGS) >= 70
