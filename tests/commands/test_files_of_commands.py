"""Which file a command reads, and that it needs no secret that it does not use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway import cli
from gateway.config.references import References, secret_places

CONFIG = """
store: {url: "embedded:data", journal_dir: journal}
admin: {token: "${UNSET_1}", viewer_token: "${UNSET_2}", tokens: {ci: {token: "${UNSET_3}", role: viewer}}}
metrics: {token: "${UNSET_4}"}
alerts:
  webhook: "${UNSET_5}"
  proxy: "http://user:${UNSET_6}@proxy.example:3128"
  receivers:
    chat: {webhook: "${UNSET_16}", proxy: "http://user:${UNSET_17}@proxy.example:3128", secret: "${UNSET_18}"}
    pager: {form: pagerduty, routing_key: "${UNSET_19}"}
    people: {email: [owner]}
  smtp: {host: mail.example.org, username: gateway, password: "${UNSET_20}", sender: gateway@example.org}
hooks:
  before_call:
    guard: {url: "${UNSET_30}", proxy: "http://user:${UNSET_31}@proxy.example:3128", secret: "${UNSET_32}"}
parameters:
  models:
    gpt-*: {headers: {x-one: "${UNSET_33}"}}
    claude-*: [{headers: {x-two: "${UNSET_34}"}}]
tracing: {endpoint: "https://collector.example", headers: {x-token: "${UNSET_7}"}}
oidc:
  issuer: https://login.example.org
  client_id: gateway
  client_secret: "${UNSET_8}"
  session_key: "${UNSET_9}"
  redirect_url: https://gateway.example.org/admin/sign-in/callback
upstreams:
  up:
    base_url: "https://api.openai.com/v1"
    api_key: "${UNSET_10}"
    proxy: "${UNSET_11}"
    headers: {x-a: "${UNSET_12}"}
  two: {base_url: "https://api.openai.com/v1", api_keys: ["${UNSET_13}", "${file:/nonexistent/key}"]}
models: {gpt-4o-mini: {routes: [{upstream: up}, {upstream: two}], max_output_tokens: 1000}}
keys: [{id: filed, secret: "${UNSET_14}"}, {id: other-one, secret: "${UNSET_15}"}]
"""

READS = [
    "keys list",
    "keys show filed",
    "teams list",
    "audit",
    "usage",
    "calls",
    "refusals",
    "prices",
    "prices gpt-4o-mini",
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GATEWAY_CONFIG", raising=False)
    monkeypatch.delenv("GATEWAY_URL", raising=False)
    return tmp_path


@pytest.mark.parametrize("line", READS)
def test_commands_that_read_need_no_secret(line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "gateway.yaml").write_text(CONFIG)
    assert cli.main(line.split()) == 0, capsys.readouterr().err
    assert "UNSET" not in capsys.readouterr().err


def test_a_key_can_be_made_without_the_secrets_of_upstreams(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "gateway.yaml").write_text(CONFIG)
    assert cli.main(["keys", "create", "--id", "alice"]) == 0, capsys.readouterr().err


def test_the_sample_has_every_secret_place() -> None:
    seen: set[str] = set()

    class Watching(References):
        def replace_in(self, value: object, path: tuple[str | int, ...]) -> object:
            if isinstance(value, str) and "${" in value:
                seen.add("/".join(map(str, path)))
            return super().replace_in(value, path)

    import yaml

    watching = Watching({}, lambda path: "", reads_secrets=False)
    watching.replace_in(yaml.safe_load(CONFIG), ())
    assert watching.faults == []
    patterns = [re.compile(place.replace("*", "[^/]+")) for place in secret_places()]
    assert all(any(pattern.fullmatch(place) for place in seen) for pattern in patterns)


@pytest.mark.parametrize("line", ["check", "serve", "upstreams"])
def test_commands_that_use_secrets_need_them(line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "gateway.yaml").write_text(CONFIG)
    assert cli.main([line]) == 2
    assert "the environment variable UNSET_10 is not set" in capsys.readouterr().err


def test_a_missing_variable_of_another_setting_is_a_fault(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "gateway.yaml").write_text(CONFIG.replace("embedded:data", "${STORE_URL}"))
    assert cli.main(["keys", "list"]) == 2
    assert "store.url: the environment variable STORE_URL is not set" in capsys.readouterr().err


GOOD = """
store: {url: "embedded:data", journal_dir: journal}
upstreams: {up: {base_url: "https://api.example.com/v1", api_key: sk-1}}
models: {gpt-4o: {routes: [{upstream: up}], price: {input: 2, output: 8}}}
"""


def test_check_takes_the_file_as_it_comes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.yaml").write_text(GOOD)
    assert cli.main(["check", "mine.yaml"]) == 0
    assert capsys.readouterr().out.startswith("mine.yaml is good.")
    assert cli.main(["check"]) == 2
    assert "gateway check gateway.yaml" in capsys.readouterr().err
    (folder / "gateway.yaml").write_text(GOOD)
    assert cli.main(["check"]) == 0


def test_the_environment_counts_before_the_folder(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "gateway.yaml").write_text("models: 5")
    (folder / "other.yaml").write_text(GOOD)
    monkeypatch.setenv("GATEWAY_CONFIG", "other.yaml")
    assert cli.main(["check"]) == 0
    assert capsys.readouterr().out.startswith("other.yaml is good.")


def test_prices_of_a_model_need_no_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["prices", "gpt-4o-mini"]) == 0
    assert "gpt-4o-mini: openai, genai-prices" in capsys.readouterr().out
    assert cli.main(["prices", "gpt-4o-mini", "--format", "json"]) == 0
    assert '"provider": "openai"' in capsys.readouterr().out
    assert cli.main(["prices", "--providers"]) == 0
    assert cli.main(["prices", "nonsense-of-mine"]) == 2
    assert cli.main(["prices"]) == 2
    assert cli.main(["prices", "update"]) == 2
    assert "or a configuration: --config FILE" in capsys.readouterr().err
