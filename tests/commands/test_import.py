"""`gateway import litellm`: the file it writes, and what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway import cli

SAMPLE = Path(__file__).parent.parent / "config" / "litellm" / "large.yaml"


def test_it_writes_what_it_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["import", "litellm", str(SAMPLE)]) == 0
    said = capsys.readouterr().out
    assert said.startswith("gateway.yaml is written: 5 models at 5 upstreams.\n")
    assert f"  {SAMPLE}:13: model_list[1]: claude: bedrock is not OpenAI-compatible" in said
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
    assert capsys.readouterr().out.startswith("gateway.yaml is good.")


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
