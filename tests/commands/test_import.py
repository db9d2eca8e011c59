"""`gateway import litellm`: the file it writes, and what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gateway import cli

SAMPLE = Path(__file__).parent.parent / "config" / "litellm" / "large.yaml"


def test_it_writes_what_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["import", "litellm", str(SAMPLE)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("gateway.yaml is written: 6 models at 5 upstreams.\n")
    assert f"  {SAMPLE}:13: model_list[1]: claude: bedrock is not OpenAI-compatible (it needs" in said
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


@pytest.mark.parametrize("text", ["", "nothing", "a,b\n1,2\n", "5", '{"a": 5}'])
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
