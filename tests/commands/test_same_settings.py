"""The admin API's operations and the commands offer the same: each member of a request body is an option."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import pytest

from gateway import cli
from gateway.commands.keys import KEY_SETTINGS, settings_of
from gateway.commands.remote import RemoteRegistry
from gateway.keys.registry import CreatedKey, Registry
from gateway.web.admin.request_bodies import CreateKey, CreateTeam, RequestBody, UpdateKey, UpdateTeam
from gateway.web.wings import admin_operations

FILE = """
upstreams: {up: {base_url: "https://api.example.com/v1", api_key: sk-1}}
models: {m: {routes: [{upstream: up}], max_output_tokens: 9, price: {input: 2, output: 8}}}
defaults: {keys: {quotas: [{usd: 20, per: month}]}}
"""
MERGED = {"quotas": {"requests", "tokens", "usd"}, "quota_changes": {"requests", "tokens", "usd"},
          "limits": {"limit"}, "labels": {"label"},
          "members": {"member_keys", "member_models", "member_by_key"}, "member_quotas": {"member_quota"}}  # fmt: skip
"""Members of which an option changes a part."""
NAMES = {"id": {"named", "name"}, "name": {"named", "name"}}
MEMBERS = "/admin/api/teams/{name}/members"
"""People in a team, whose windows `gateway people ... --team` changes."""
ELSEWHERE = {"config", "url", "token_file", "shape", "help", "act", "place"}


def options(command: str, action: str) -> set[str]:
    """What `gateway COMMAND ACTION` takes, but for where it works and what it prints."""
    parser = argparse.ArgumentParser()
    (row,) = [each for each in cli.commands_of_all() if each.name == command]
    cli._module(row).add_arguments(parser)
    (actions,) = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    return {each.dest for each in actions.choices[action]._actions} - ELSEWHERE


@pytest.mark.parametrize(
    ("command", "action", "body"),
    [("keys", "create", CreateKey), ("keys", "update", UpdateKey), ("teams", "create", CreateTeam),
     ("teams", "update", UpdateTeam)],
)  # fmt: skip
def test_each_member_of_a_body_is_an_option(command: str, action: str, body: type[RequestBody]) -> None:
    expected = {"name"}
    for member in body.model_fields:
        expected |= MERGED.get(member) or NAMES.get(member) or {member}
    assert options(command, action) == expected


def test_rows_are_members_of_both_bodies() -> None:
    assert KEY_SETTINGS.keys() == UpdateKey.model_fields.keys() - MERGED.keys()
    assert UpdateKey.model_fields.keys() | {"id", "quota_changes"} == CreateKey.model_fields.keys()


def test_quotas_of_a_new_key_mean_the_same_with_a_file_and_over_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each place is asked for the same: only the gateway knows its defaults."""
    bodies: list[Any] = []

    async def remember(_: Any, body: Any, *__: Any, **___: Any) -> CreatedKey:
        bodies.append(body)
        return CreatedKey({"id": "x"}, "sk-gw-x")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GATEWAY_TOKEN", "a-token-of-an-operator")
    monkeypatch.setattr(Registry, "create_key", remember)
    monkeypatch.setattr(RemoteRegistry, "create_key", remember)
    Path("gateway.yaml").write_text(FILE)
    for place in (["--config", "gateway.yaml"], ["--url", "http://127.0.0.1:9"]):
        assert cli.main(["keys", "create", "--id", "x", "--requests", "7/day", "--usd", "none/month", *place]) == 0
    changes = {"requests": ["7/day"], "usd": ["none/month"]}
    assert bodies == [{"id": "x", "quota_changes": changes}] * 2


def test_none_is_everything_for_a_new_key_and_the_default_for_a_known_one() -> None:
    given = argparse.Namespace(**dict.fromkeys(KEY_SETTINGS))
    given.models, given.ips, given.max_wait_s = ["none"], ["none"], "none"
    assert settings_of(given, is_new=True) == {"models": ["*"], "ips": [], "max_wait_s": None}
    assert settings_of(given, is_new=False) == {"models": None, "ips": None, "max_wait_s": None}


def test_each_operation_on_keys_teams_and_people_is_a_command() -> None:
    actions = {
        ("POST", ""): "create", ("GET", ""): "list", ("GET", "/{}"): "show", ("PATCH", "/{}"): "update",
        ("POST", "/{}/rotate"): "rotate", ("POST", "/{}/pause"): "pause", ("POST", "/{}/resume"): "resume",
        ("POST", "/{}/delete"): "delete", ("DELETE", "/{}"): "revoke", ("POST", "/{}/reset"): "reset",
        ("POST", "/{}/top_up"): "top-up", ("POST", "/{}/end_sessions"): "end-sessions",
        ("POST", "/{}/end_access"): "end-access", ("POST", "/{}/give_access"): "give-access",
    }  # fmt: skip
    of_scopes = {("GET", "/{}/when_above"): ("when-above", "show"), ("PUT", "/{}/when_above"): ("when-above", "set")}
    seen = 0
    places = [(method, path.replace(MEMBERS, "/admin/api/people")) for method, path in admin_operations()]
    for method, path in places:
        for command in ("keys", "teams", "people"):
            folder = f"/admin/api/{command}"
            if path.startswith(folder):
                rest = re.sub("{[a-z]+}", "{}", path.removeprefix(folder))
                if (method, rest) in of_scopes:
                    assert "scope" in options(*of_scopes[method, rest])
                    continue
                action = actions[method, rest]
                options(
                    command, "delete" if (command, action) == ("teams", "revoke") else action
                )  # KeyError: no such command
                seen += 1
    assert seen >= 25
