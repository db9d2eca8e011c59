"""A table of mistakes: each is reported with its place and its cause or remedy, as a fault or as a warning."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.config import ConfigError, build, resolve
from gateway.config.checks import HABITS
from gateway.config.probable_mistakes import warnings_of
from gateway.config.references import load
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
    ("keys/0/id", "Alice Smith", "small letters, digits and _ . - inside, such as alice-2"),
    ("upstreams/up/base_url", "'https://api.openai.com/v1'", "has quotes around it"),
    ("upstreams/up/base_url", '"https://api.openai.com/v1"', "has quotes around it"),
    ("upstreams/up/base_url", "\u201chttps://api.openai.com/v1\u201d", "typographic quotes"),
    ("upstreams/up/base_url", "https://api.openai.com/v1 ", "ends with a blank"),
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
    ("store/url", "embedded:$HOME/data", "$ is no folder here: write the whole path"),
    ("store/journal_dir", "$HOME/journal", "or ${NAME}"),
    ("store/journal_dir", "%APPDATA%/journal", "% is no folder here"),
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
    (
        "admin/tokens",
        {"ci": {"token": TOKEN, "role": "viewer", "previous_token": TOKEN[::-1]}},
        "previous_token and previous_until belong together",
    ),
    (
        "admin/tokens",
        {"ci": {"token": TOKEN, "role": "viewer", "previous_token": TOKEN, "previous_until": "2027-01-01"}},
        "tokens.ci.previous_token is the same as tokens.ci.token",
    ),
    ("model_list", [], "gateway import litellm FILE converts it"),
    ("litellm_settings", {}, "gateway import litellm FILE converts it"),
    ("providers", {}, "providers are upstreams"),
    ("redis", "x", "store.url: redis://host:6379/0"),
    # Values of the wrong kind.
    ("server/port", "80a", "expected a valid integer"),
    ("server/port", 99999, "less than or equal to 65535"),
    ("server/workers", 0, "greater than or equal to 1"),
    ("server/workers", 2.5, "a number with a fractional part"),
    ("server/drain_delay_s", -1, "such as 90s, 1h30m or 7d"),
    ("server/access_log", "yes", "'json', 'text' or 'off'"),
    ("server/trusted_proxies", "10.0.0.1/8", "expected a list, such as [one, two]"),
    ("server/trusted_proxies", ["10.0.0.1/8"], "nothing but zeros behind its prefix"),
    ("server/trusted_proxies", ["proxy.internal"], "expected a network such as 10.0.0.0/8"),
    ("server/public_url", "gateway.example.org", "such as https://gateway.example.org"),
    ("server/public_url", "ftp://x", "such as https://gateway.example.org"),
    ("server/max_in_flight", 0, "such as 100, 100k or 1M"),
    ("store/url", "redis://", "an address like redis://host:6379/0"),
    ("store/url", "redis:6379", "expected redis://, rediss://"),
    ("store/url", "rediss//host", "expected embedded:FOLDER"),
    ("store/url", "postgres://x/y", "expected embedded:FOLDER"),
    ("store/url", "http://redis:6379", "or redis://host:6379/0"),
    ("store/url", "redis://h:port/0", "an address like redis://host:6379/0"),
    ("store/url", "redis://h/x", "the last part is the number of the database"),
    ("store/url", "embedded:", "for instance embedded:./gateway-data"),
    ("store/url", "memory", "for instance embedded:./gateway-data"),
    ("store/sums_days", 0, "expected whole days"),
    ("store/on_outage", "ignore", "'deny' or 'allow'"),
    ("store/usage_records_max", 0, "such as 100, 100k or 1M"),
    ("upstreams/up/base_url", "api.openai.com/v1", "an address like https://api.openai.com/v1"),
    ("upstreams/up/base_url", "https://", "an address like https://api.openai.com/v1"),
    ("upstreams/up/base_url", "https://h/v1?x=1", "the key belongs in api_key"),
    ("upstreams/up/base_url", "https://u:p@h/v1", "the key belongs in api_key"),
    ("upstreams/up/base_url", "", "an address like https://api.openai.com/v1"),
    ("upstreams/up/base_url", "https://h:70000/v1", "an address like https://api.openai.com/v1"),
    ("upstreams/up/base_url", "https://h /v1", "an address like https://api.openai.com/v1"),
    ("upstreams/up/proxy", "proxy:3128", "expected http://host:port"),
    ("upstreams/up/proxy", "socks5://h:1", "of another kind than http do not work"),
    ("upstreams/up/max_connections", 0, "from 1"),
    ("upstreams/up/on_disconnect", "stop", "'cancel' or 'drain'"),
    ("upstreams/up/timeouts", {"total": 5}, "did you mean 'total_s'?"),
    ("upstreams/up/limits", {"rpm": 5}, "a rate is a quota"),
    ("upstreams/up/bas_url", "x", "did you mean 'base_url'?"),
    ("upstreams/up", "https://x", "expected settings as 'name: value' lines"),
    ("models/m/routes", [{"upstream": "upp"}], "there is no upstream 'upp'; there are: up"),
    ("models/m/routes", ["up"], "expected settings as 'name: value' lines"),
    ("models/m/routes", [{"upstream": "up", "weight": -1}], "from 1"),
    ("models/m/max_output_tokens", 0, "from 1"),
    ("models/m/price", {"input": "$2"}, "expected a number of US dollars"),
    ("models/m/price", {"input": -2}, "US dollars from 0"),
    ("models/m/price", {"input": "2,50"}, "such as 20 or 0.15"),
    ("models/m/price", {"inputs": 2}, "did you mean 'input'?"),
    ("models/m/endpoints", ["chats"], "expected 'completions', 'chat'"),
    ("models/m/fallbacks", ["n"], "there is no model 'n'"),
    ("models/m/fallbacks", ["m"], "is the model itself; name another one"),
    ("models/m/unpriced", "yes", "'deny' or 'allow'"),
    ("models/m", "up", "expected settings as 'name: value' lines"),
    ("models/m/upstream", "up", "a model has routes: [{upstream: NAME}]"),
    ("models", {}, "name at least one model"),
    ("keys", {"alice": {}}, "expected a list, such as [{id: ...}]"),
    ("keys/0/secret", "short", "needs at least 24 characters"),
    ("keys/0/secret", None, "expected exactly one of secret, sha256"),
    ("keys/0/expires", "31.12.2027", "expected a day such as 2027-01-01"),
    ("keys/0/expires", "2027-02-30", "expected a day such as 2027-01-01"),
    ("keys/0/expires", "tomorrow", "or a moment such as"),
    ("keys/0/team", "red", "there is no team 'red' under teams"),
    ("keys/0/models", "m", "expected a list, such as [one, two]"),
    ("keys/0/ips", ["10.0.0.1/33"], "expected a network such as 10.0.0.0/8"),
    ("keys/0/ips", ["office"], "expected a network such as 10.0.0.0/8"),
    ("keys/0/priority", 5, "'interactive', 'normal' or 'batch'"),
    ("keys/0/quotas", {"usd": 5}, "expected a list, such as [{requests: ...}]"),
    ("keys/0/quotas", [{"usd": 5}], "quotas[0].per: is required"),
    ("keys/0/quotas", [{"usd": -5, "per": "day"}], "US dollars from 0"),
    ("keys/0/quotas", [{"usd": 5, "per": "year"}], "expected second, minute, hour, day, week, month"),
    ("keys/0/quotas", [{"token": 5, "per": "day"}], "did you mean 'tokens'?"),
    ("keys/0/quotas", [{"usd": 5, "per": "day"}, {"usd": 6, "per": "day"}], "counts the same as keys[0].quotas[0]"),
    ("keys/0/quotas", [{"usd": 1e-10, "per": "day"}], "with at most 9 decimals"),
    ("keys/0/quotas", [{"requests": 1.5, "per": "day"}], "expected a whole number"),
    ("keys/0/quotas", ["5,50 usd/month"], "expected a number of US dollars"),
    ("keys/0/quotas", ["10O requests/day"], "expected a whole number"),
    ("keys/0/quotas", ["5 euro/day"], "expected requests, tokens or USD behind the amount"),
    ("keys/0/quotas", ["5 usd"], "expected an amount and a time"),
    ("keys", [{"id": "a", "secret": SECRET}, {"id": "a", "secret": f"{SECRET}x"}], "'a' is the id of 2 keys"),
    ("keys", [{"id": "a", "secret": SECRET}, {"id": "b", "secret": SECRET}], "has the same secret as keys[0]"),
    ("teams", [{"name": "red"}], "expected settings as 'name: value' lines"),
    ("quotas", {"usd": 5}, "expected a list, such as [{requests: ...}]"),
    ("admin/token", "short", "needs at least 16 characters"),
    ("admin/tokens", {"ci": {"token": TOKEN, "role": "root"}}, "'operator', 'lead' or 'viewer'"),
    ("admin/listen", "9090", "expected host:port, such as 127.0.0.1:9090"),
    ("alerts/webhook", "hooks.slack.com/x", "an address like https://hooks.example.com"),
    ("alerts/webhok", "x", "did you mean 'webhook'?"),
    ("server/prot", 80, "did you mean 'port'?"),
    ("upstreams/up/base_url:\u00a0x", None, "its name holds a blank that is not seen, such as a no-break space"),
    ("upstreams/up/\u00a0base_url", "x", "its name holds a blank that is not seen, such as a no-break space"),
    ("store/usage_record_max", 5, "did you mean 'usage_records_max'?"),
    ("queue", {"max_wait": 5}, "did you mean 'max_wait_s'?"),
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
    (
        "admin/tokens",
        {
            "ci": {
                "token": TOKEN,
                "role": "viewer",
                "previous_token": "changeit12345678",
                "previous_until": "2027-06-01",
            }
        },
        "easy to guess",
    ),
    # Addresses.
    ("server", {"public_url": "https://gateway.example.org/v1"}, "ends in /v1"),
    ("server", {"public_url": "https://gateway.example.org/v1/"}, "ends in /v1"),
    ("models/m/price", {"input": 8, "output": 2}, "probably exchanged"),
    ("upstreams/up/base_url", "https://api.openai.com/v1/chat/completions", "which the gateway adds itself"),
    # Keys that serve no call.
    ("keys/0/expires", "2020-01-01", "is in the past: every call with this key is refused"),
    ("keys/0/models", ["gpt-*"], "matches none of the models: m"),
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
        if place.endswith(("/api_key", "/secret", "admin/token")) and isinstance(value, str) and len(value.strip()) > 8:
            assert value.strip() not in " ".join(messages_of(place, value)), place


def test_each_row_of_the_tables_has_a_mistake() -> None:
    everything = " ".join(message for place, value, _ in [*FAULTS, *WARNINGS] for message in messages_of(place, value))
    assert [cause for _, cause in CAUSES if cause not in everything] == []
    assert [sentence for _, sentence in FORMS if sentence not in everything] == []
    assert set(HABITS.values()) - {hint for hint in HABITS.values() if hint in everything} <= {HABITS["database"]}
    assert len(FAULTS) + len(WARNINGS) >= 150


def test_a_no_break_space_in_the_file_is_named() -> None:
    with pytest.raises(ConfigError) as refused:
        load("models:\u00a0{gpt-4o: {routes: []}}")
    assert "the line holds a blank that is not seen" in str(refused.value)


@pytest.mark.parametrize("reference", ["${EMPTY}", "${BLANK}", "${GONE:-}", "${file:empty}"])
@pytest.mark.parametrize("place", ["upstreams.up.api_key", "upstreams.up.api_keys[0]", "admin.token", "keys[0].secret"])
def test_an_empty_variable_or_file_is_named(reference: str, place: str) -> None:
    """The variable may be set far away from the file."""
    held = {
        "upstreams.up.api_key": f"upstreams: {{up: {{api_key: '{reference}'}}}}",
        "upstreams.up.api_keys[0]": f"upstreams: {{up: {{api_keys: ['{reference}']}}}}",
        "admin.token": f"admin: {{token: '{reference}'}}",
        "keys[0].secret": f"keys: [{{secret: '{reference}'}}]",
    }
    with pytest.raises(ConfigError) as refused:
        resolve(held[place], {"EMPTY": "", "BLANK": " "}, lambda _: "")
    about = [str(fault) for fault in refused.value.faults if fault.path == place]
    assert about == [f"{place}: {reference} is empty"]


def test_an_empty_variable_elsewhere_is_an_empty_text() -> None:
    text = "keys: [{note: '${EMPTY}'}]\nupstreams: {up: {base_url: 'https://h${EMPTY}/v1'}}"
    assert resolve(text, {"EMPTY": ""}).values["keys"] == [{"note": ""}]
