"""`gateway keys`, `teams`, `audit` as an operator types them, beside a gateway that runs and without one."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import logging
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway import cli
from gateway.commands import registry as registry_command
from tests.conftest import ScriptedUpstream, StartsGateways
from tests.fakes.redis_servers import RedisServer
from tests.fakes.scripted import dead_port, ok_json
from tests.flows.gateway_process import CHAT, COMPLETIONS, Gateway, eventually, key, run, secret, settings
from tests.flows.steering import until_all_know, until_all_say, use

NOWHERE = "http://127.0.0.1:9/v1"
PASSWORD = "store-password-that-nobody-may-see"
USAGE = {"prompt_tokens": 10, "completion_tokens": 5}

Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module", params=["embedded", "redis"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("store")
    if request.param == "embedded":
        yield f"embedded:{folder / 'data'}"
        return
    with RedisServer(folder, password=PASSWORD) as server:
        yield server.url


@pytest.fixture(scope="module")
def gateway(
    start_shared_gateway: StartsGateways,
    shared_upstream: ScriptedUpstream,
    url: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Gateway:
    shared_upstream.answer_with(always=ok_json({"choices": [], "usage": USAGE}))
    return start_shared_gateway(
        settings(
            shared_upstream.url,
            store={"url": url, "journal_dir": str(tmp_path_factory.mktemp("journal"))},
            keys=[key("alice"), key("filed", team="filed")],
            teams={"filed": {"quotas": [{"usd": 500, "per": "month"}]}},
            models={COMPLETIONS: {"price": {"input": 1, "output": 2}}, CHAT: {"price": {"input": 1, "output": 2}}},
        )
    )


class Operator:
    """Types commands on one configuration. They are carried out in this process, which saves the start of another; a
    few tests start one all the same."""

    def __init__(self, file: Path | str) -> None:
        self._file = str(file)

    def __call__(self, line: str) -> Done:
        """`keys create --id x`, as it would be typed, but for `gateway` and `--config`."""
        words = shlex.split(line)
        at = 1 if words[0] == "audit" else 2
        typed = [*words[:at], "--config", self._file, *words[at:]]
        out, err, log = io.StringIO(), io.StringIO(), logging.getLogger("gateway")
        level = log.level
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = cli.main(typed)
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            log.setLevel(level)
        return Done(typed, code, out.getvalue(), err.getvalue())

    def says(self, line: str) -> str:
        """What a command writes that is carried out."""
        done = self(line)
        received = [each for each in done.stderr.splitlines() if not each.startswith("gateway: warning: ")]
        assert (done.returncode, received) == (0, []), done
        return done.stdout

    def json(self, line: str) -> Any:
        return json.loads(self.says(f"{line} --json"))

    def fails(self, line: str, code: int, *words: str) -> None:
        """This exit code, nothing on standard output, and one plain line on standard error."""
        done = self(line)
        assert (done.returncode, done.stdout) == (code, ""), done
        (said,) = done.stderr.splitlines()
        assert said.startswith("gateway: "), done
        for each in words:
            assert each in said
        assert PASSWORD not in said


@pytest.fixture
def operator(gateway: Gateway) -> Operator:
    return Operator(gateway.file)


@pytest.fixture
def alone(tmp_path: Path) -> Operator:
    """Without a gateway, nor a store yet."""
    path = tmp_path / "gateway.yaml"
    changes: dict[str, Any] = {"keys": [key("filed", team="filed")], "teams": {"filed": {}}}
    path.write_text(yaml.safe_dump(settings(NOWHERE, store={"url": f"embedded:{tmp_path / 'data'}"}, **changes)))
    return Operator(path)


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Operator:
    """Without a gateway, and with a store."""
    folder = tmp_path_factory.mktemp("beside")
    path = folder / "gateway.yaml"
    changes: dict[str, Any] = {"keys": [key("filed", team="filed")], "teams": {"filed": {}}}
    path.write_text(yaml.safe_dump(settings(NOWHERE, store={"url": f"embedded:{folder / 'data'}"}, **changes)))
    operator = Operator(path)
    assert operator("teams create --name there").returncode == 0
    return operator


# ----------------------------------------------------------------------------------------------------------------- keys


def test_a_key_is_made_for_eyes_and_its_secret_is_the_last_line(gateway: Gateway, operator: Operator) -> None:
    received = operator.says(
        "keys create --id eyes --team filed --models 'gpt-3.5*,text-*' --expires 2199-01-01 --tokens 1000000/day "
        "--requests 60/minute --usd 50/month --tokens 5k/day:gpt-3.5* --max-parallel 20 --limit n=4 --ips 127.0.0.0/8"
    ).splitlines()
    made = received[-1]
    assert re.fullmatch(r"sk-gw-eyes-[A-Za-z0-9_-]{43}", made)
    assert received[-3:-1] == ["The key eyes is made; its secret is shown this once:", ""]
    shown = dict(line.split("  ", 1) for line in received[:-4])
    assert shown["quotas"].strip() == ("60 requests/minute; 1,000,000 tokens/day; 5,000 tokens/day:gpt-3.5*; $50/month")
    assert (shown["expires"].strip(), shown["models"].strip()) == ("2199-01-01T00:00:00Z", "gpt-3.5* text-*")
    assert use(gateway, made).status == 200
    assert use(gateway, made, n=5).error["param"] == "n"


def test_scripts_take_the_secret_alone_or_as_json(gateway: Gateway, operator: Operator) -> None:
    quiet = operator.says("keys create script --quiet")
    assert quiet == quiet.strip() + "\n"
    assert use(gateway, quiet.strip()).status == 200
    made = operator.json("keys create --id robot --tokens 5/month")
    assert (made["id"], made["quotas"]) == ("robot", [{"tokens": 5, "per": "month"}])
    assert made["secret"].startswith("sk-gw-robot-")
    assert "secret" not in operator.json("keys show robot")


def test_lists_are_aligned_tables_csv_and_json(operator: Operator) -> None:
    operator.says("keys create --id wide --tokens 1000000/day --requests 600/minute --usd 0.5/hour --models 'a*,b*,c*'")
    names, rule, *lines = operator.says("keys list").splitlines()
    assert names.split() == ["id", "status", "team", "managed", "by", "models", "expires", "quotas"]
    starts = [found.start() for found in re.finditer(r"-+", rule)]
    for line in lines:
        assert all(line[start - 1 : start].strip() == "" for start in starts[1:])
    (wide,) = [line for line in lines if line.startswith("wide ")]
    assert (
        wide.endswith("a* b* c*  -        " + "600 requests/minute; 1,000,000 tokens/day; $0.5/hour")
        or "600 req" in wide
    )
    rows = operator.json("keys list")
    assert [line.split()[0] for line in lines] == [row["id"] for row in rows]
    spelt = list(csv.DictReader(io.StringIO(operator.says("keys list --csv"))))
    assert [row["id"] for row in spelt] == [row["id"] for row in rows]
    assert spelt[0]["expires"] == ""
    assert {row["id"] for row in operator.json("keys list --team filed")} >= {"filed"}
    assert "alice" not in operator.says("keys list --team filed")
    assert operator.says("keys list --team nobody") == "There are none.\n"


def test_what_is_named_changes_and_all_else_stays(gateway: Gateway, operator: Operator) -> None:
    made = operator.says(
        "keys create --id growing --tokens 1000/day --requests 1/day --limit n=2 --limit stop=1 --quiet"
    ).strip()
    assert [use(gateway, made, max_tokens=5).status for _ in range(2)] == [200, 429]
    operator.says("keys update growing --requests 3/day --usd 5/month --limit n=none --limit deny=logit_bias")
    shown = operator.json("keys show growing")
    assert shown["quotas"] == [
        {"requests": 3, "per": "day"}, {"tokens": 1000, "per": "day"}, {"usd": 5, "per": "month"},
    ]  # fmt: skip
    assert shown["limits"] == {"stop": 1, "deny": ["logit_bias"]}
    until_all_know(gateway, made, lambda received: received["quotas"][0]["limit"] == 3)
    assert [use(gateway, made, max_tokens=5).status for _ in range(3)] == [200, 200, 429]
    operator.says("keys update growing --usd none/month --team filed --expires 1d --max-parallel 2")
    operator.says("keys update growing --team none --expires none --max-parallel none --limit deny=none")
    shown = operator.json("keys show growing")
    assert (shown["team"], shown["expires"], shown["max_parallel"], shown["limits"]) == (None, None, None, {"stop": 1})
    assert [quota["per"] for quota in shown["quotas"]] == ["day", "day"]


def test_rotate_overlaps_and_revoke_ends(gateway: Gateway, operator: Operator) -> None:
    first = operator.says("keys create --id turner --quiet").strip()
    second = operator.says("keys rotate turner --overlap 1h").splitlines()[-1]
    operator.says("keys update turner --max-parallel 50")  # who knows of this has heard of the rotation
    until_all_know(gateway, second, lambda received: bool(received["quotas"][-1]["limit"] == 50))
    assert (use(gateway, first).status, use(gateway, second).status) == (200, 200)
    third = operator.json("keys rotate turner")["secret"]
    for old in (first, second):
        until_all_say(gateway, old, 401)
    assert use(gateway, third).status == 200
    assert "revoked" in operator.says("keys revoke turner")
    until_all_say(gateway, third, 401)


def test_windows_are_reset_and_topped_up(gateway: Gateway, operator: Operator) -> None:
    made = operator.says("keys create --id spender --requests 1/day --usd 1/month --quiet").strip()
    assert [use(gateway, made, max_tokens=5).status for _ in range(2)] == [200, 429]
    assert len(gateway.calls("spender")) == 1  # now the file has it, where one worker writes behind
    received = operator.says("keys top-up spender --requests 1/day").splitlines()
    assert received[0].split()[-4:] == ["limit", "used", "reserved", "remaining"]
    assert received[2].split()[:3] == ["key:spender", "requests", "day"]
    assert received[2].split()[-4:] == ["2", "1", "0", "1"]
    until_all_know(gateway, made, lambda received: received["quotas"][0]["limit"] == 2)
    assert [use(gateway, made, max_tokens=5).status for _ in range(2)] == [200, 429]
    assert len(gateway.calls("spender")) == 2  # the same
    (reset,) = [
        row for row in operator.json("keys reset spender --unit requests --per day") if row["unit"] == "requests"
    ]
    assert reset["used"] == 0
    eventually(lambda: use(gateway, made, max_tokens=5).status == 200)  # a lone worker looks at the file each 0.1 s
    assert [use(gateway, made, max_tokens=5).status for _ in range(2)] == [200, 429]


# ------------------------------------------------------------------------------------------------------ teams and audit


def test_teams_are_handled_alike(operator: Operator) -> None:
    assert "$500/month" in operator.says("teams create --name crew --usd 500/month")
    assert operator.json("teams update crew --tokens 10/day --usd none/month")["quotas"] == [
        {"tokens": 10, "per": "day"}
    ]
    operator.says("keys create --id member --team crew")
    operator.fails("teams delete crew", 1, "belong to the team 'crew'", "member")
    operator.says("keys revoke member")
    assert [row["limit"] for row in operator.json("teams top-up crew --tokens 5/day")] == [15]
    assert operator.json("teams reset crew")[0]["used"] == 0
    assert [row["name"] for row in operator.json("teams list")][:2] == ["crew", "filed"]
    assert operator.says("teams list --csv").startswith("name,managed_by,quotas,created_at,updated_at\ncrew,store,")
    assert operator.says("teams delete crew") == "The team crew is gone.\n"


def test_the_audit_log_says_who_did_what(gateway: Gateway, operator: Operator) -> None:
    operator.says("keys create --id seen --max-parallel 1")
    operator.says("keys update seen --max-parallel 2")
    newest, older = operator.json("audit --limit 2")
    assert (newest["action"], older["action"], newest["name"]) == ("update", "create", "seen")
    assert re.fullmatch(r"gateway keys, user \S+( \(sudo by \S+\))?", newest["actor"])
    _, _, line = operator.says("audit --limit 1").splitlines()
    assert line.endswith("max_parallel: 1 -> 2")
    assert operator.says("audit --limit 1 --csv").splitlines()[0] == "time,actor,action,kind,name,before,after"
    received = operator.says("audit --limit 1000 --json")
    assert "sk-gw-" not in received


# ----------------------------------------------------------------------------------------------- what a person can mend


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("keys create", 2, "argument --id: expected one, such as --id alice"),
        ("keys create one --id two", 2, "argument --id: expected exactly one"),
        ("keys create --id UPPER", 2, "id: "),
        ("keys create --id x --tokens 5", 2, "argument --tokens: expected an amount and a time, such as 1M/day"),
        ("keys create --id x --usd none/day", 2, "there is no quota of usd per day to take away"),
        ("keys create --id x --expires soon", 2, "argument --expires: expected a day such as 2027-01-01"),
        (
            "keys create --id x --max-parallel many",
            2,
            "argument --max-parallel: expected a whole number such as 100, 100k or 1M",
        ),
        ("keys create --id x --limit n:4", 2, "argument --limit: 'n:4' is not a limit such as n=4"),
        ("keys create --id x --limit m=4", 2, "limits.m: there is no such setting"),
        ("keys create --id x --team nowhere", 2, "there is no team 'nowhere'"),
        ("keys create --id x --ips 10.0.0.1/8", 2, "ips[0]"),
        ("keys create --id x --ips ''", 2, "argument --ips: expected one or more, with commas, or none"),
        ("keys create --id x --models , --models ''", 2, "argument --models: expected one or more"),
        ("keys create --id filed", 1, "There is a key 'filed' already"),
        ("keys update filed --max-parallel 1", 1, "configuration file"),
        ("keys update filed", 2, "nothing to change"),
        ("keys show nobody", 1, "There is no key 'nobody'"),
        ("keys rotate nobody --overlap soon", 2, "argument --overlap: expected a time such as 90s"),
        ("keys rotate filed", 1, "configuration file"),
        ("keys reset filed --per fortnight", 2, "argument --per: expected second, minute, hour"),
        ("keys reset filed --per week", 1, "There is no such quota of key:filed"),
        ("keys top-up filed", 2, "expected one of --tokens, --requests, --usd"),
        ("keys top-up filed --tokens 5/day --usd 1/day", 2, "expected one of --tokens"),
        ("keys top-up filed --tokens none/day", 2, "a top-up needs an amount"),
        ("keys top-up filed --tokens 5/minute", 2, "Only a quota of a day, week or month can be topped up"),
        ("teams create --name 'No Name'", 2, "small letters"),
        ("teams update filed", 2, "nothing to change"),
        ("teams delete filed", 1, "configuration file"),
        ("audit --limit 0", 2, "argument --limit: expected a number from 1"),
    ],
)
def test_faults_are_one_plain_line(beside: Operator, line: str, code: int, words: str) -> None:
    beside.fails(line, code, words)


@pytest.mark.parametrize(
    "line", ["keys", "keys dance", "keys list --xml", "keys list --csv --json", "teams", "keys show"]
)
def test_unknown_arguments(line: str) -> None:
    done = run(*line.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: gateway")


@pytest.mark.parametrize("action", ["create", "list", "show", "update", "rotate", "revoke", "reset", "top-up"])
def test_every_action_has_help(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["keys", action, "--help"])
    received = capsys.readouterr()
    assert (end.value.code, received.err) == (0, "")
    assert f"usage: gateway keys {action}" in received.out
    assert ("examples:\n  " in received.out) is (action not in ("list", "show", "revoke"))


# ----------------------------------------------------------------------------------------------------------- on its own


def test_a_first_key_makes_the_store_and_says_so(alone: Operator, tmp_path: Path) -> None:
    done = alone("keys create --id first --quiet")
    assert (done.returncode, done.stdout[:12]) == (0, "sk-gw-first-")
    assert done.stderr == f"gateway: there was no {tmp_path / 'data' / 'gateway.sqlite'}; it is made now\n"
    assert [row["id"] for row in alone.json("keys list")] == ["filed", "first"]


def test_looking_makes_nothing(alone: Operator, tmp_path: Path) -> None:
    for line, shown in (("keys list", "filed"), ("teams list", "filed"), ("keys show filed", "filed"),
                        ("audit", "There are none.")):  # fmt: skip
        done = alone(line)
        assert done.returncode == 0
        assert done.stderr == f"gateway: there is no {tmp_path / 'data' / 'gateway.sqlite'} yet\n"
        assert shown in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["gateway.yaml"]


def test_a_key_of_the_file_is_revoked_before_the_gateway_starts(
    alone: Operator, tmp_path: Path, start_gateway: StartsGateways
) -> None:
    assert alone("keys revoke filed").returncode == 0
    gateway = start_gateway(yaml.safe_load((tmp_path / "gateway.yaml").read_text()))
    assert gateway.get("/v1/models", key="filed").status == 401
    assert secret("filed") not in alone.says("keys show filed")


def test_a_command_without_the_journal_of_a_gateway_says_so(redis_server: RedisServer, tmp_path: Path) -> None:
    """Nothing repeats its change if Redis loses it."""
    path, journal_dir = tmp_path / "gateway.yaml", tmp_path / "elsewhere"
    store = {"url": redis_server.url, "journal_dir": str(journal_dir)}
    path.write_text(yaml.safe_dump(settings(NOWHERE, store=store)))
    operator = Operator(path)
    for line in ("keys create --id lonely", "keys revoke lonely", "teams create --name lonely", "keys pause alice"):
        done = operator(line)
        (said,) = done.stderr.splitlines()
        assert done.returncode == 0
        assert said.startswith("gateway: warning: the change of ")
        assert f"is in no decision journal: {journal_dir}/decisions-" in said
    assert operator("keys list").stderr == ""


def test_a_store_that_is_away(tmp_path: Path) -> None:
    path, where = tmp_path / "gateway.yaml", f"127.0.0.1:{dead_port()}"
    path.write_text(yaml.safe_dump(settings(NOWHERE, store={"url": f"redis://gateway:{PASSWORD}@{where}/0"})))
    operator = Operator(path)
    operator.fails("keys list", 1, f"redis://{where}/0 cannot be reached")
    operator.fails("keys create --id x", 1, f"redis://{where}/0", "may have been made or not")


def test_the_user_behind_sudo_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setenv("SUDO_USER", "bob")
    assert registry_command.actor("keys") == "gateway keys, user root (sudo by bob)"
    monkeypatch.setattr(os, "getuid", lambda: 123_456)
    assert registry_command.actor("teams") == "gateway teams, user 123456"
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setenv("SUDO_USER", "bob\nfake line")
    assert registry_command.actor("keys") == "gateway keys, user root"


def test_a_process_of_its_own_says_the_same(alone: Operator, tmp_path: Path) -> None:
    config = ("--config", str(tmp_path / "gateway.yaml"))
    made = run("keys", "create", "own", *config, "--quiet")
    assert (made.returncode, made.stdout[:10]) == (0, "sk-gw-own-")
    assert run("keys", "list", *config).stdout == alone.says("keys list")
    done = run("keys", "create", "own", *config)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("gateway: There is a key 'own' already.")
    assert run("audit", *config, "--csv").stdout.count("\n") == 2
