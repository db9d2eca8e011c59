"""The rules of deploy/prometheus: they parse, they ask for what there is, and they say what they should."""

from __future__ import annotations

import copy
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.programs import run
from tests.fakes.prometheus import RULES
from tests.fakes.redis_servers import ROOT
from tests.prometheus.names import OF_PROMETHEUS, complaints, exported

TESTS = Path(__file__).parent.parent / "rules.yaml"
FILES = sorted(RULES.glob("*.yaml"))
EACH = [rule for file in FILES for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]
RECORDED = [rule for rule in EACH if "record" in rule]
ALERTS = [rule for rule in EACH if "alert" in rule]


def by_name(rule: Any) -> str:
    return str(rule.get("record") or rule["alert"])


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_promtool_takes_the_rules(file: Path) -> None:
    said = run("promtool", "check", "rules", file)
    assert said.returncode == 0, said.stdout


def test_the_rules_do_what_their_tests_say() -> None:
    said = run("promtool", "test", "rules", TESTS)
    assert said.returncode == 0, said.stdout


def test_of_the_names_that_were_asked_for_none_is_missing() -> None:
    """What a rule has to be there for."""
    assert {by_name(rule) for rule in ALERTS} >= {
        "GatewayDown", "GatewayErrorRate", "GatewaySlowFirstToken", "GatewayWorkersDie", "GatewayReloadRefused",
        "GatewayUpstreamIll", "GatewayStoreAway", "GatewayJournalGrows", "GatewayUsageUnknown",
        "GatewayEstimateShareHigh", "GatewayQuotaNearlySpent", "GatewaySharedQuotaNearlySpent",
        "GatewayChangesLost", "GatewayChangesRestored", "GatewayUsageImplausible",
    }  # fmt: skip


@cache
def known() -> dict[str, set[str]]:
    """All series that a rule may ask for, with their labels; of recorded ones those that their expressions leave."""
    found = {**exported(), **OF_PROMETHEUS}
    for rule in RECORDED:
        kept = re.findall(r"\bby \(([^)]*)\)", rule["expr"])
        found[rule["record"]] = {label.strip() for labels in kept for label in labels.split(",")} - {"le", ""}
    return found


@pytest.mark.parametrize("rule", EACH, ids=by_name)
def test_a_rule_asks_for_what_there_is(rule: Any) -> None:
    assert list(complaints(rule["expr"], known())) == []


@pytest.mark.parametrize("rule", RECORDED, ids=by_name)
def test_a_recorded_name_says_what_is_left_of_the_labels(rule: Any) -> None:
    level = rule["record"].partition(":")[0]
    left = known()[rule["record"]]
    assert left == (set() if level == "gateway" else set(level.split("_")))


@pytest.mark.parametrize("rule", ALERTS, ids=by_name)
def test_an_alert_says_what_to_do(rule: Any) -> None:
    assert rule["labels"]["severity"] in ("page", "ticket", "info")
    received = rule["annotations"]
    assert set(received) == {"summary", "description", "runbook"}
    assert len(received["summary"]) < 120
    assert len(received["description"]) > 100
    file, _, anchor = received["runbook"].partition("#")
    headings = re.findall(r"^## (.+)$", (ROOT / file).read_text(), re.MULTILINE)
    assert anchor in [re.sub(r"[^\w-]", "", heading.lower().replace(" ", "-")) for heading in headings]


@pytest.mark.parametrize("rule", ALERTS, ids=by_name)
def test_an_alert_names_labels_that_it_has(rule: Any) -> None:
    labels = set(re.findall(r"\$labels\.(\w+)", " ".join(rule["annotations"].values())))
    kept = re.findall(r"\bby \(([^)]*)\)", rule["expr"])
    names = re.findall(r"[a-z_:]*(?:gateway_|up\b)[a-z_:0-9]*", rule["expr"])
    assert labels <= ({label.strip() for each in kept for label in each.split(",")} if kept else known()[names[0]])


# A test that no broken rule fails is none: each rule is broken in two ways, and its test has to say so.


def said_of_broken(tmp_path: Path, expression: str, *, waits: bool) -> set[str]:
    """Which rules' tests fail when every rule has this expression."""
    tests = copy.deepcopy(yaml.safe_load(TESTS.read_text()))
    tests["rule_files"] = [file.name for file in FILES]
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump(tests))
    for file in FILES:
        groups = yaml.safe_load(file.read_text())
        for rule in [rule for group in groups["groups"] for rule in group["rules"]]:
            rule["expr"] = expression
            if not waits:
                rule.pop("for", None)
        (tmp_path / file.name).write_text(yaml.safe_dump(groups))
    said = run("promtool", "test", "rules", tmp_path / "tests.yaml")
    assert said.returncode != 0
    failed = re.findall(r"alertname: (\w+)|expr: (.*), time:", said.stdout)
    return {by_name(rule) for rule in EACH if any(by_name(rule) in "".join(each) for each in failed)}


def test_a_rule_that_is_never_true_fails_its_test(tmp_path: Path) -> None:
    assert said_of_broken(tmp_path, "vector(1) == 2", waits=True) == {by_name(rule) for rule in EACH}


def test_an_alert_that_is_always_true_fails_its_test(tmp_path: Path) -> None:
    assert said_of_broken(tmp_path, "vector(1)", waits=False) >= {by_name(rule) for rule in ALERTS}
