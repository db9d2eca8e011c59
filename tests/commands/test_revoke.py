"""`gateway keys revoke` asks on a terminal, because nothing undoes it."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from gateway import cli

CONFIG = """
store: {url: "embedded:data", journal_dir: journal}
upstreams: {up: {base_url: "https://api.example.com/v1", api_key: sk-1}}
models: {gpt-4o: {routes: [{upstream: up}], price: {input: 2, output: 8}}}
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file beside a store with the key alice."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GATEWAY_URL", raising=False)
    monkeypatch.delenv("GATEWAY_CONFIG", raising=False)
    Path("gateway.yaml").write_text(CONFIG)
    assert cli.main(["keys", "create", "--id", "alice"]) == 0


def at_terminal(monkeypatch: pytest.MonkeyPatch, typed: str, *options: str) -> tuple[int, str]:
    """Revoke alice at a terminal where this is typed: the exit code, and the text that is shown."""
    shown = Terminal()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", shown)
        patched.setattr(sys, "stdin", Terminal(typed))
        return cli.main(["keys", "revoke", "alice", *options]), shown.getvalue()


def test_another_answer_revokes_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = at_terminal(monkeypatch, "yes\n")
    assert code == 2
    assert "gateway keys pause alice can be undone" in shown
    assert "alice is not revoked" in shown
    capsys.readouterr()
    cli.main(["keys", "show", "alice"])
    assert "revoked at" not in capsys.readouterr().out


def test_the_id_confirms_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = at_terminal(monkeypatch, "alice\n")
    assert code == 0
    assert "Type alice" in shown
    assert "revoked at" in capsys.readouterr().out


def test_scripts_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    code, shown = at_terminal(monkeypatch, "", "--yes")
    assert (code, "Type alice" in shown) == (0, False)
