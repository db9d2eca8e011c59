"""Settings: every mistake is reported with its path, and no fault shows a secret.

Each file in config/bad has one mistake (a few have several); its first lines list the expected faults:
`# fault: PATH -- PART OF THE MESSAGE`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from ipaddress import ip_network
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gateway.config import Config, ConfigError, ConfigFault, build, format_faults, is_expired, resolve, sections
from gateway.records import Key

ROOT = Path(__file__).parent.parent.parent
BAD = sorted((Path(__file__).parent / "bad").glob("*.yaml"))
ENV = {
    "OPENAI_API_KEY": "sk-upstream-secret",
    "GATEWAY_ADMIN_TOKEN": "admin-secret-0123456789",
    "CI_BOT_KEY": "sk-client-secret-0123456789",
}

GOOD = """
upstreams:
  up: {base_url: "https://api.example.com/v1/", api_key: "${OPENAI_API_KEY}"}
models:
  m: {routes: [{upstream: up}], max_output_tokens: 100}
"""
GIVEN = resolve(GOOD, ENV).values


def parse(text: str, env: Mapping[str, str]) -> Config:
    return build(resolve(text, env).values)


def faults_of(text: str, env: Mapping[str, str] = ENV) -> list[ConfigFault]:
    with pytest.raises(ConfigError) as caught:
        parse(text, env)
    assert str(caught.value) == "\n".join(map(str, caught.value.faults))
    return caught.value.faults


# -------------------------------------------------------------------------------------------------------- mistakes


def expected_in(text: str) -> list[tuple[str, str]]:
    lines = [line.removeprefix("# fault: ") for line in text.splitlines() if line.startswith("# fault: ")]
    return [(path, message) for path, _, message in (line.partition(" -- ") for line in lines)]


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_mistake(path: Path) -> None:
    has_the_faults_that_it_names(path)


def has_the_faults_that_it_names(path: Path) -> None:
    text = path.read_text()
    expected = expected_in(text)
    assert expected, f"{path.name} does not say what is wrong with it"
    found = faults_of(text)
    for where, what in expected:
        assert any(fault.path == where and what in fault.message for fault in found), f"{where}: {what}\n{found}"
    assert {fault.path for fault in found} == {where for where, _ in expected}
    assert len(found) == len(set(found))


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_fault_is_one_plain_line_and_shows_no_secret(path: Path) -> None:
    has_plain_faults(path)


def has_plain_faults(path: Path) -> None:
    text = path.read_text()
    for fault in faults_of(text):
        assert str(fault).isprintable()
        assert len(str(fault)) < 260
        for secret in ("secret-of-ours", "secret of ours", "a-secret-of-28", "123456789012345678901234567890"):
            assert secret not in str(fault)
        for jargon in ("Input should", "pydantic", "Value error", "type=", "AnchorDict"):
            assert jargon not in str(fault)


def test_there_are_many_mistakes() -> None:
    assert len(BAD) >= 25


def test_faults_of_references_and_of_values_are_reported_together() -> None:
    text = GOOD.replace("OPENAI_API_KEY", "NOT_SET") + "server: {port: x, hots: y}\nkeys: [{id: a, secret: '${NO}'}]\n"
    assert {fault.path for fault in faults_of(text)} == {
        "upstreams.up.api_key", "server.port", "server.hots", "keys[0].secret",
    }  # fmt: skip


def test_a_missing_reference_is_reported_once() -> None:
    (fault,) = faults_of(GOOD.replace("OPENAI_API_KEY", "NOT_SET"))
    assert fault == ConfigFault("upstreams.up.api_key", "the environment variable NOT_SET is not set")


def test_faults_of_an_upstream_or_team_are_not_repeated_at_its_references() -> None:
    text = """
upstreams: {up: {base_url: nonsense}}
models: {m: {routes: [{upstream: up}]}}
teams: {red: {qoutas: []}}
keys: [{id: a, secret: a-secret-of-28-characters-001, team: red}]
"""
    assert {fault.path for fault in faults_of(text)} == {"upstreams.up.base_url", "teams.red.qoutas"}


@pytest.mark.parametrize("values", [{}, {"models": 5}, {"keys": {}, "teams": []}, {"keys": [5], "models": {"a": None}}])
def test_build_of_any_plain_values_raises_only_config_errors(values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        build(values)


@pytest.mark.parametrize(
    ("path", "spelt"),
    [
        ((), ""),
        (("keys", 0, "limits", "n"), "keys[0].limits.n"),
        (("models", "gpt-4.1", "routes", 1), 'models."gpt-4.1".routes[1]'),
        (("models", "*"), 'models."*"'),
        (("upstreams", "a b"), 'upstreams."a b"'),
    ],
)
def test_spell(path: tuple[str | int, ...], spelt: str) -> None:
    assert format_faults(path) == spelt


# ------------------------------------------------------------------------------------------------------- references


def api_key(text: str, env: Mapping[str, str], **files: str) -> str:
    def read_file(path: str) -> str:
        return files[path]

    values = resolve(GOOD.replace("${OPENAI_API_KEY}", text), env, read_file).values
    assert isinstance(values["upstreams"]["up"]["api_key"], str)
    return values["upstreams"]["up"]["api_key"]


@pytest.mark.parametrize(
    ("text", "env", "value"),
    [
        ("literal", {}, "literal"),
        ("${A}", {"A": "x"}, "x"),
        ("a-${A}-${B}-c", {"A": "1", "B": "2"}, "a-1-2-c"),
        ("${A:-other}", {"A": "x"}, "x"),
        ("${A:-other}", {}, "other"),
        ("${A:-other}", {"A": ""}, "other"),  # as in a shell
        ("a${A:-}b", {}, "ab"),
        ("${A}", {"A": "${B}", "B": "x"}, "${B}"),  # references inside a value are not resolved
        ("${file:secrets}", {}, "from-a-file"),
        ("$A {A} $$", {"A": "x"}, "$A {A} $$"),
    ],
)
def test_references(text: str, env: dict[str, str], value: str) -> None:
    assert api_key(text, env, secrets="from-a-file") == value


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_file_is_read_without_its_last_line_end_and_its_byte_order_mark(tmp_path: Path, mark: str) -> None:
    (tmp_path / "key").write_text(f"{mark}from-a-file\r\n", encoding="utf-8")
    config = parse(GOOD.replace("${OPENAI_API_KEY}", f"${{file:{tmp_path}/key}}"), {})
    assert (key := config.upstreams["up"].api_key) is not None
    assert key.get_secret_value() == "from-a-file"


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"\xff\xfe")
    (fault,) = faults_of(GOOD.replace("${OPENAI_API_KEY}", f"${{file:{tmp_path}/key}}"))
    assert (fault.path, "not UTF-8 text" in fault.message) == ("upstreams.up.api_key", True)


def test_references_may_stand_where_a_number_does() -> None:
    text = GOOD + "server: {port: '${PORT}', workers: '${WORKERS:-3}'}\nquotas: [{requests: '${N}', per: '${PER}'}]\n"
    config = parse(text, {**ENV, "PORT": "8081", "N": "7", "PER": "60"})
    assert (config.server.port, config.server.workers) == (8081, 3)
    assert (config.quotas[0].limit, config.quotas[0].per_s) == (7, 60)


def test_anchors_and_merges_work() -> None:
    text = (
        GOOD
        + """
teams:
  red: &team {quotas: [{requests: 5, per: day}]}
  blue: *team
  green: {<<: *team}
"""
    )
    config = parse(text, ENV)
    assert config.teams["red"] == config.teams["blue"] == config.teams["green"]


# ------------------------------------------------------------------------------------------------------- good files


def test_defaults() -> None:
    config = parse(GOOD, ENV)
    assert config.upstreams["up"].base_url == "https://api.example.com/v1"
    assert (config.server.host, config.server.port, config.server.workers) == ("127.0.0.1", 8080, 1)
    assert config.store.folder == Path("./gateway-data")
    assert config.admin.token is None
    assert config.keys == ()
    assert Key("k").limits == build({**GIVEN, "keys": [a_key()]}).keys[0].limits


def a_key(**changes: Any) -> dict[str, Any]:
    return {"id": "a", "secret": ENV["CI_BOT_KEY"], **changes}


@pytest.mark.parametrize("spelt", ["off", "Off", '"off"', "${LOG}"])
def test_the_access_log_is_switched_off_by_the_bare_word(spelt: str) -> None:
    """YAML parses `off` as false."""
    assert parse(f"{GOOD}server:\n  access_log: {spelt}\n", {**ENV, "LOG": "off"}).server.access_log == "off"


def test_a_key_with_everything() -> None:
    values = GIVEN | {
        "teams": {"red": {}},
        "keys": [
            a_key(
                team="red",
                expires="2027-01-01T00:00:00Z",
                ips=["10.0.0.0/8", "::1"],
                quotas=[{"tokens": 5, "per": "month", "model": "gpt-4*"}, {"requests": 9, "per": 90}],
            ),
            {"id": "b", "sha256": hashlib.sha256(b"x").hexdigest().upper()},
        ],
    }
    first, second = build(values).keys
    assert first.digest == hashlib.sha256(ENV["CI_BOT_KEY"].encode()).digest()
    assert second.digest == hashlib.sha256(b"x").digest()
    assert first.expires == datetime(2027, 1, 1, tzinfo=UTC)
    assert first.ips == (ip_network("10.0.0.0/8"), ip_network("::1"))
    tokens, requests = first.quotas
    assert (tokens.unit, tokens.limit, tokens.per_s) == ("tokens", 5, None)
    assert (requests.unit, requests.limit, requests.per_s) == ("requests", 9, 90)
    assert tokens.covers("gpt-4o")
    assert not tokens.covers("gpt-3.5")
    assert requests.covers("anything")


@pytest.mark.parametrize(
    ("spelt", "nusd"),
    [
        ("50", 50 * 10**9), ("0.1", 10**8), ("1.10", 1_100_000_000), ("0.000000001", 1), ("1.0e-5", 10_000),
        ("'12.34'", 12_340_000_000), ("9007199.25", 9_007_199_250_000_000), ("5.000000000000", 5 * 10**9),
        ("'${BUDGET}'", 2_675_000_000),
    ],
)  # fmt: skip
def test_a_quota_in_usd_is_counted_in_billionths(spelt: str, nusd: int) -> None:
    (quota,) = parse(GOOD + f"quotas: [{{usd: {spelt}, per: month}}]", {**ENV, "BUDGET": "2.675"}).quotas
    assert (quota.unit, quota.limit) == ("usd", nusd)


def test_a_price_needs_what_its_endpoints_use() -> None:
    text = GOOD + "  e: {endpoints: [embeddings], routes: [{upstream: up}], price: {input: 0.02}}\n"
    price = parse(text, ENV).models["e"].price
    assert price is not None
    assert price.nusd_per_million == (20_000_000, 20_000_000, 0)
    model = parse(GOOD, ENV).models["m"]
    assert (model.price, model.unpriced) == (None, "deny")


@pytest.mark.parametrize(("per", "seconds"), [("second", 1), ("minute", 60), ("hour", 3600), ("day", None), (7, 7)])
def test_per(per: str | int, seconds: int | None) -> None:
    (quota,) = build({**GIVEN, "quotas": [{"requests": 1, "per": per}]}).quotas
    assert quota.per_s == seconds


def test_quotas_that_differ_in_any_way_are_windows_of_their_own() -> None:
    quotas = [{"requests": 1, "per": "minute"}, {"requests": 1, "per": 60}, {"tokens": 1, "per": "minute"}]
    quotas += [{"requests": 1, "per": "minute", "model": "m"}]
    assert len(build({**GIVEN, "quotas": quotas}).quotas) == 4


def test_model() -> None:
    routes = [{"upstream": "up"}]
    values = {**GIVEN, "models": {"a": {"routes": routes}, "*": {"routes": routes, "max_attempts": 1}}}
    config = build(values)
    assert [found and found.model.max_attempts for found in (config.model("a"), config.model("b"))] == [3, 1]
    assert parse(GOOD, ENV).model("b") is None


@pytest.mark.parametrize(("now", "over"), [(-1, False), (0, True), (1, True)])
def test_is_expired(now: int, over: bool) -> None:
    moment = datetime(2027, 1, 1, tzinfo=UTC)
    assert is_expired(moment, moment.timestamp() + now) is over
    assert not is_expired(None, now)


def test_everything_is_frozen() -> None:
    config = parse(GOOD, ENV)
    with pytest.raises(ValueError, match="frozen"):
        config.server.port = 1


SECRETS = {
    "admin": {"token": "admin-hidden-0123456789"},
    "metrics": {"token": "metrics-hidden-012345"},
    "upstreams": {"up": {
        "base_url": "https://api.example.com/v1", "api_key": "sk-hidden", "headers": {"X-Key": "header-hidden"},
    }},
    "keys": [{"id": "a", "secret": "sk-client-hidden-0123456789"}],
}  # fmt: skip


def test_no_secret_in_any_repr() -> None:
    config = build({**GIVEN, **SECRETS})
    for shown in (repr(config), str(config), config.model_dump_json(), repr(config.keys[0]), f"{config.upstreams}"):
        assert "hidden" not in shown


def test_no_secret_in_faults_of_a_file_full_of_them() -> None:
    broken = json.loads(json.dumps(SECRETS).replace("0123456789", " \\n"))
    broken["upstreams"]["up"]["headers"]["X-Key"] = "header-hidden\n"
    broken["keys"] += [
        {"id": "sk-hidden?", "sha256": "hidden", "expires": "hidden", "ips": ["hidden"], "models": "hidden"}
    ]
    broken["server"] = {"port": "hidden", "access_log": "hidden", "workers": ["hidden"]}
    with pytest.raises(ConfigError) as caught:
        build({**GIVEN, **broken})
    assert len(caught.value.faults) >= 8
    assert "hidden" not in str(caught.value)


def test_plain_values_go_to_workers_as_json() -> None:
    """The supervisor resolves references once; workers build the same configuration from its JSON."""
    text = (
        GOOD
        + """
server: {client_body_timeout_s: 2.5, workers: 2}
keys:
  - {id: a, secret: "${CI_BOT_KEY}", expires: 2027-01-01T00:00:00Z, ips: ["10.0.0.0/8"], quotas: [{tokens: 5, per: 90}]}
"""
    )
    values = resolve(text, ENV).values
    assert build(json.loads(json.dumps(values))) == build(values) == parse(text, ENV)


def test_example_file() -> None:
    path = ROOT / "config" / "gateway.yaml"
    values = resolve(path.read_text(), ENV).values
    config: Config = build(json.loads(json.dumps(values)))
    assert {"completions", "chat"} <= {name for model in config.models.values() for name in model.endpoints}
    assert config.keys
    with pytest.raises(ConfigError) as caught:
        parse(path.read_text(), {})
    assert {name for name in ENV if name in str(caught.value)} == set(ENV)


@pytest.mark.parametrize(("endpoint", "address"), [
    ("http://localhost:4318", "http://localhost:4318/v1/traces"),
    ("http://localhost:4318/", "http://localhost:4318/v1/traces"),
    ("https://otlp.example.com/otlp", "https://otlp.example.com/otlp/v1/traces"),
    ("http://localhost:4318/v1/traces", "http://localhost:4318/v1/traces"),
])  # fmt: skip
def test_traces_go_where_the_protocol_has_them(endpoint: str, address: str) -> None:
    config = parse(GOOD + f"tracing: {{endpoint: '{endpoint}', headers: {{Authorization: a-token}}}}", ENV)
    assert config.tracing.address == address
    assert "a-token" not in repr(config)


def test_sections_for_anchors_are_ignored() -> None:
    text = GOOD + "x-own: &own {missing: '${NOT_SET}'}\nx-list: [1, 2]\n"
    assert parse(text, ENV) == parse(GOOD, ENV)
    assert [fault.path for fault in faults_of(GOOD + "y-own: {}\n")] == ["y-own"]


def test_the_public_url_is_checked_and_loses_its_last_slash() -> None:
    assert (
        parse(f"{GOOD}server:\n  public_url: https://llm.example.org/\n", ENV).server.public_url
        == "https://llm.example.org"
    )
    with pytest.raises(ConfigError, match=r"server\.public_url"):
        parse(f"{GOOD}server:\n  public_url: llm.example.org\n", ENV)


def test_no_field_of_a_section_hides_a_function_that_its_annotations_use() -> None:
    """In the body of a class a field's default stands before the module's names, and would be called instead."""
    for module in [module for module in vars(sections).values() if isinstance(module, ModuleType)]:
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, sections.Section) and kind.__module__ == module.__name__:
                assert not kind.model_fields.keys() & vars(module).keys(), kind
