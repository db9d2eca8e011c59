"""`gateway import litellm`: the file it writes, and what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway import cli

SAMPLE = Path(__file__).parent / "files" / "large.yaml"


def test_it_writes_what_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["import", "litellm", str(SAMPLE)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("gateway.yaml is written: 6 models at 5 upstreams.\n")
    assert f"  {SAMPLE}:13: model_list[1]: claude: the gateway speaks" in said
    assert "Variables to set: OPENAI_API_KEY_2, OPENAI_API_KEY, OLLAMA_BASE" in said
    assert "secret-of-theirs" not in said + Path("gateway.yaml").read_text()
    monkeypatch.setenv("REDIS_HOST", "127.0.0.1")
    for name in said.partition("Variables to set: ")[2].partition("\n")[0].split(", "):
        monkeypatch.setenv(
            name,
            {"REDIS_HOST": "127.0.0.1", "OLLAMA_BASE": "http://x.example"}.get(
                name, f"secret-of-{name}-0123456789".replace("_", "-")
            ),
        )
    text = Path("gateway.yaml").read_text()
    start = text.index("store:")
    Path("gateway.yaml").write_text(
        text.replace(text[start : text.index("\n", text.index("url:", start))], "store: {}")
    )
    assert cli.main(["check", "--config", "gateway.yaml"]) == 0, capsys.readouterr().err
    assert capsys.readouterr().out.startswith("gateway.yaml can be used, but see 1 warning.")


def test_it_replaces_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "gateway.yaml"
    target.write_text("mine")
    arguments = ["import", "litellm", str(SAMPLE), "--config", str(target)]
    assert cli.main(arguments) == 2
    assert target.read_text() == "mine"
    assert "is there already" in capsys.readouterr().err
    assert cli.main([*arguments, "--force"]) == 0
    assert target.read_text() != "mine"


@pytest.mark.parametrize(("file", "says"), [("gone.yaml", "cannot read gone.yaml"), ("/dev/null", "expected settings")])
def test_what_cannot_be_read(file: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["import", "litellm", file, "--config", str(tmp_path / "x")]) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


ROWS = """token,key_alias,team_id,models,max_budget,budget_duration,spend,expires,blocked
2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae,Alice's laptop,t-1,{gpt-4o},50,30d,12.5,,f
fcde2b2edba56bf408601fb721fe9b5c338d10ee429ea04fae5511b68fbf8fb9,gone,t-1,{},,,0,2025-01-01 00:00:00,f
baa5a0964d3320fbc0c6a922140453c8513ea24ab8fd0577034804a967248096,blocked,t-1,{},,,0,,t
sk-plain,odd,t-1,{},,,0,,f
"""
TEAMS = '[{"team_id": "t-1", "team_alias": "Core Infra", "max_budget": 500, "budget_duration": "1mo", "models": []}]'


def test_keys_and_teams_come_from_rows_of_the_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("keys.csv").write_text(ROWS)
    Path("teams.json").write_text(TEAMS)
    assert cli.main(["import", "litellm", "--database", "keys.csv", "--database", "teams.json"]) == 0
    listed = capsys.readouterr().out
    assert listed.startswith("gateway.yaml is written: 1 key in 1 team.\n")
    assert yaml.safe_load(Path("gateway.yaml").read_text()) == {
        "teams": {"core-infra": {"quotas": [{"usd": 500, "per": "month"}]}},
        "keys": [{
            "id": "alice-s-laptop",
            "sha256": "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
            "team": "core-infra",
            "models": ["gpt-4o"],
            "quotas": [{"usd": 50, "per": "month"}],
        }],
    }  # fmt: skip
    for note in (
        "has the id alice-s-laptop here",
        "has spent 12.50 USD",
        "gone: has expired",
        "blocked: is blocked",
        "odd",
    ):
        assert note in listed
    assert "sk-plain" not in listed


def imported(rows: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(folder)
    Path("rows.json").write_text(json.dumps(rows))
    assert cli.main(["import", "litellm", "--database", "rows.json"]) == 0
    return yaml.safe_load(Path("gateway.yaml").read_text())


TOKEN = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"


@pytest.mark.parametrize("limit", ["max_budget", "rpm_limit", "tpm_limit", "max_parallel_requests"])
@pytest.mark.parametrize("table", ["LiteLLM_VerificationToken", "LiteLLM_TeamTable", "LiteLLM_BudgetTable"])
def test_a_limit_of_nothing_does_not_become_no_limit(
    limit: str, table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: dict[str, list[dict[str, Any]]] = {
        "LiteLLM_VerificationToken": [{"token": TOKEN, "key_alias": "spent", "team_id": "t", "budget_id": "b"}],
        "LiteLLM_TeamTable": [{"team_id": "t", "team_alias": "crew"}],
        "LiteLLM_BudgetTable": [{"budget_id": "b"}],
    }
    rows[table][0][limit] = 0
    assert "keys" not in imported(rows, tmp_path, monkeypatch)
    assert f"{limit} is 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("key", "team", "found"),
    [
        (["all-proxy-models"], ["gpt-4o"], ["gpt-4o"]), (["gpt-4o", "o3"], ["gpt-4o"], ["gpt-4o"]),
        (["gpt-*"], ["gpt-4o", "o3"], ["gpt-4o"]), (["gpt-4o"], ["gpt-*"], ["gpt-4o"]),
        (["gpt-4o"], ["all-proxy-models"], ["gpt-4o"]), (["gpt-4o"], [], ["gpt-4o"]),
    ],
)  # fmt: skip
def test_a_key_may_use_what_its_team_may_use_too(
    key: list[str], team: list[str], found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {
        "LiteLLM_VerificationToken": [{"token": TOKEN, "key_alias": "k", "team_id": "t", "models": key}],
        "LiteLLM_TeamTable": [{"team_id": "t", "team_alias": "crew", "models": team}],
    }
    assert imported(rows, tmp_path, monkeypatch)["keys"][0]["models"] == found


def test_the_budget_of_a_user_is_that_of_a_person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {
        "LiteLLM_VerificationToken": [{"token": TOKEN, "key_alias": "k", "user_id": "u-1"}],
        "LiteLLM_UserTable": [{"user_id": "u-1", "user_email": "ann@example.org", "max_budget": 30, "rpm_limit": 9}],
    }
    done = imported(rows, tmp_path, monkeypatch)
    assert done["keys"][0]["owner"] == "ann@example.org"
    assert done["people"] == {
        "ann@example.org": {"quotas": [{"usd": 30, "per": "month"}, {"requests": 9, "per": "minute"}]}
    }


@pytest.mark.parametrize("text", ["", "nothing", "a,b\n1,2\n", "5", '{"a": 5}', '[{"token": "' + "a" * 140_000])
def test_files_without_rows(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows").write_text(text)
    assert cli.main(["import", "litellm", "--database", "rows"]) == 2
    assert "expected rows of LiteLLM's tables" in capsys.readouterr().err


def test_a_source_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["import", "litellm"]) == 2
    assert "expected LiteLLM's config.yaml, or --database FILE" in capsys.readouterr().err
