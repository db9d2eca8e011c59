"""Every `gateway` command in the README and the docs is one that the program has, with its options."""

from __future__ import annotations

import re
import shlex

import pytest

from gateway import cli

from .pages import ROOT, Snippet, snippets

COMMANDS = [
    (snippet, line)
    for snippet in snippets("console", "sh")
    for line in snippet.commands
    if line.strip().startswith("gateway ")
]


@pytest.mark.parametrize(("snippet", "line"), COMMANDS, ids=[f"{snippet!r} {line}" for snippet, line in COMMANDS])
def test_a_command_is_understood(snippet: Snippet, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATEWAY_CONFIG", "gateway.yaml")  # a page may rely on the file in its folder
    words = shlex.split(line.partition(" > ")[0], comments=True)[1:]
    if words == ["--version"]:
        return
    assert cli._parser(words[:2]).parse_args(words)


def test_inline_commands_exist() -> None:
    """Of commands within a sentence: at least the name."""
    known = {command.name.split()[0] for command in cli.commands_of_all()}
    for page in {snippet.page for snippet in snippets("console", "sh")}:
        named = set(re.findall(r"`gateway ([a-z]+(?:-[a-z]+)*)", (ROOT / page).read_text()))
        assert named <= known, page
