"""Typical mistakes on the command line and in the admin API: each is refused with what was expected, and an example.

Those of the file are rows of tests/config/test_probable_mistakes.py (what loads) and files of tests/config/bad (what
does not). Together they are the promise that nothing of the kind is called good.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway import cli
from gateway.config import ConfigError, build, read_key, read_team
from gateway.errors import InvalidRequest
from gateway.web.admin.request_bodies import CreateKey, CreateTeam, GrantTopUp, ResetQuotas, RotateKey, read
from tests.config.test_config import BAD
from tests.config.test_probable_mistakes import MISTAKES

CONFIG = """
store: {url: "embedded:%s"}
upstreams: {up: {base_url: "https://api.example.com/v1", api_key: sk-1}}
models: {gpt-4o: {routes: [{upstream: up}], max_output_tokens: 1000, price: {input: 2, output: 8}}}
keys: [{id: filed, secret: a-secret-of-28-characters-001}]
"""

COMMANDS = [
    ("keys create", "argument --id: expected one, such as --id alice"),
    ("keys create --id Alice", "id: expected to match pattern"),
    ("keys create --id other", "'other' is reserved"),
    ("keys create --id a --tokens 1000000", "such as 1M/day"),
    ("keys create --id a --tokens 1M/fortnight", "expected second, minute, hour, day, week, month"),
    ("keys create --id a --tokens 1.5/day", "expected a whole number of tokens greater than 0, such as 1M"),
    ("keys create --id a --tokens 5USD/day", "expected tokens, such as 1M/day, and not usd"),
    ("keys create --id a --usd 1,5/day", "expected an amount in US dollars greater than 0, such as 20"),
    ("keys create --id a --usd 20EUR/month", "expected requests, tokens or USD behind the amount"),
    ("keys create --id a --requests 60/minutely", "expected second, minute, hour, day, week, month"),
    ("keys create --id a --requests 0/day", "greater than 0, such as 60"),
    ("keys create --id a --expires 01.02.2027", "expected a day such as 2027-01-01"),
    ("keys create --id a --expires tomorrow", "or a time from now such as 30d"),
    ("keys create --id a --ips 10.0.0.1/8", "expected a network such as 10.0.0.0/8"),
    ("keys create --id a --max-parallel few", "expected a whole number such as 100, 100k or 1M"),
    ("keys create --id a --limit n:4", "is not a limit such as n=4"),
    ("keys create --id a --limit n=four", "expected a whole number behind n="),
    ("keys create --id a --limit nn=4", "there is no such setting; did you mean 'n'?"),
    ("keys create --id a --team nobody", "there is no team 'nobody'; create it first"),
    ("keys rotate filed --overlap 1hour", "expected a time such as 90s, 1h30m or 7d"),
    ("keys reset filed --per weekly", "expected second, minute, hour, day, week, month"),
    ("keys top-up filed --tokens none/day", "a top-up needs an amount"),
    ("keys top-up filed --tokens 5/hour", "Only a quota of a day, week or month can be topped up"),
    ("usage --since 20.11.2026", "expected a day such as 2026-11-20"),
    ("usage --by people", "--by"),
]

API: list[tuple[type[Any], dict[str, Any], str]] = [
    (CreateKey, {"name": "a"}, "Unknown parameter: 'name'"),
    (CreateKey, {"id": "a", "secret": "sk-mine"}, "Unknown parameter: 'secret'"),
    (CreateKey, {"id": "a", "models": "gpt-4o"}, "expected an array, but got a string"),
    (CreateKey, {"id": "a", "quotas": {"tokens": 5}}, "expected an array"),
    (CreateKey, {"id": "a", "quotas": [{"tokens": 5}]}, "Missing required parameter: 'quotas[0].per'"),
    (CreateKey, {"id": "a", "quotas": [{"tokens": "5 apples/day"}]}, "such as 1M"),
    (CreateKey, {"id": "a", "quotas": ["1M/day"]}, "such as 1M tokens/day, 5 requests/week or 20 USD/month"),
    (CreateKey, {"id": "a", "quotas": [{"tokens": 5, "per": "weekly"}]}, "Expected second, minute, hour, day, week"),
    (CreateKey, {"id": "a", "quotas": [{"tokens": 5, "usd": 5, "per": "day"}]}, "exactly one of requests, tokens, usd"),
    (CreateKey, {"id": "a", "quotas": [{"tokens": "few", "per": "day"}]}, "such as 100, 100k or 1M"),
    (CreateKey, {"id": "a", "expires": "01.02.2027"}, "such as 2027-01-01"),
    (CreateKey, {"id": "a", "max_parallel": "many"}, "such as 100, 100k or 1M"),
    (CreateKey, {"id": "a", "ips": ["10.0.0.1/8"]}, "such as 10.0.0.0/8"),
    (CreateTeam, {"name": "red", "quota": []}, "Did you mean 'quotas'?"),
    (RotateKey, {"overlap": 5}, "Did you mean 'overlap_s'?"),
    (RotateKey, {"overlap_s": "1hour"}, "such as 90s, 1h30m or 7d"),
    (ResetQuotas, {"unit": "token"}, "'unit'"),
    (GrantTopUp, {"tokens": "100k/minute"}, "'day', 'week' or 'month'"),
]


@pytest.mark.parametrize(("line", "says"), COMMANDS, ids=[row[0] for row in COMMANDS])
def test_on_the_command_line(line: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(CONFIG % (tmp_path / "data"))
    assert cli.main([*line.split(), "--config", str(file)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err
    assert "Traceback" not in err


KEY = "a chat call of 'gpt-4o' without a limit of its own reserves 1000 output tokens, and this quota of 5 refuses it"
MADE = [
    ("keys create --id a --expires 2020-01-01", "expires: is in the past: every call with this key is refused"),
    ("keys update made --expires 2020-01-01", "the key made: expires: is in the past"),
    ("keys create --id a --models claude-*", "models[0]: matches none of the models: gpt-4o"),
    ("keys update made --models claude-*", "the key made: models[0]: matches none of the models: gpt-4o"),
    ("keys create --id a --tokens 5/day", f"quotas[0]: {KEY}"),
    ("keys update made --tokens 5/day", f"the key made: quotas[0]: {KEY}"),
    ("keys create --id a --usd 0.000001/day", "reserves $0.008000, and this quota of $0.000001 refuses it"),
    ("teams create --name b.c --tokens 5/day", f"the team b.c: quotas[0]: {KEY}"),
    ("teams update crew --tokens 5/day", f"the team crew: quotas[0]: {KEY}"),
    ("teams update crew --member-quota 5tokens/day", f"the team crew: member_quotas[0]: {KEY}"),
]


@pytest.mark.parametrize(("words", "says"), MADE, ids=[row[0] for row in MADE])
def test_what_is_made_by_command_is_warned_of_as_in_the_file(
    words: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("GATEWAY_URL", raising=False)
    config = tmp_path / "gateway.yaml"
    config.write_text(CONFIG % (tmp_path / "data"))
    for before in ("keys create --id made", "teams create --name crew"):
        assert cli.main([*before.split(), "--config", str(config)]) == 0
    capsys.readouterr()
    assert cli.main([*words.split(), "--config", str(config)]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gateway: warning: ")
    assert says in line


@pytest.mark.parametrize(("kind", "body", "says"), API, ids=[json.dumps(row[1]) for row in API])
def test_in_the_admin_api(kind: type[Any], body: dict[str, Any], says: str) -> None:
    """By the schema of the body, or by the checks of settings behind it."""
    config = build(
        {
            "upstreams": {"up": {"base_url": "https://api.example.com/v1"}},
            "models": {"gpt-4o": {"routes": [{"upstream": "up"}], "max_output_tokens": 1000}},
        }
    )

    def make() -> None:
        wish = read(json.dumps(body).encode(), kind)
        _ = read_team(wish, config) if kind is CreateTeam else read_key(wish, config, {})

    with pytest.raises((InvalidRequest, ConfigError)) as refused:
        make()
    assert says in getattr(refused.value, "message", str(refused.value))


def test_there_are_many() -> None:
    assert len(MISTAKES) + len(COMMANDS) + len(API) >= 80
    assert len(BAD) >= 100
