"""The section `alerts`: its faults, its warnings, and what a reload shows of its changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway.config import build
from gateway.config.wings import whole_file
from gateway.wings.alerts.settings import AlertSettings
from tests.config.test_changes import HIDDEN, Edit, shows_no_secret
from tests.config.test_config import has_plain_faults, has_the_faults_that_it_names
from tests.config.test_probable_mistakes import values_with, warned

BAD = sorted((Path(__file__).parent / "bad").glob("*.yaml"))


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_mistake(path: Path) -> None:
    has_the_faults_that_it_names(path)
    has_plain_faults(path)


def test_the_section_is_part_of_the_file() -> None:
    assert "alerts" in whole_file().model_fields
    config = build(values_with(alerts={"webhook": "https://hooks.example.com/x"}))
    assert config.section(AlertSettings).shown_webhook == "https://hooks.example.com"
    assert build(values_with()).section(AlertSettings) == AlertSettings()


MISTAKES: list[tuple[str, dict[str, Any], str, str]] = [
    (
        "a proxy of nothing",
        {"alerts": {"proxy": "http://proxy:3128"}},
        "alerts.proxy",
        "no effect without alerts.webhook",
    ),
    (
        "alerts of rates",
        {"alerts": {"webhook": "https://hooks.example.com/x"}, "quotas": ["5 requests/minute"]},
        "alerts.webhook",
        "nothing is ever sent",
    ),
]


@pytest.mark.parametrize(("changes", "path", "says"), [row[1:] for row in MISTAKES], ids=[row[0] for row in MISTAKES])
def test_what_cannot_work_has_a_warning(changes: dict[str, Any], path: str, says: str) -> None:
    (warning,) = warned(**changes)
    assert warning.path == path
    assert says in warning.message


def test_a_webhook_with_a_quota_of_a_week_has_no_warning() -> None:
    assert warned(alerts={"webhook": "https://hooks.example.com/x"}, quotas=["5 requests/week"]) == []


SECRETS: list[tuple[str, Edit]] = [
    ("alerts.webhook", lambda v: v.update(alerts={"webhook": f"https://hooks.example.com/{HIDDEN}"})),
    ("alerts.proxy", lambda v: v.update(alerts={"proxy": f"http://user:{HIDDEN}@proxy:3128"})),
]


@pytest.mark.parametrize(("path", "edit"), SECRETS, ids=[row[0] for row in SECRETS])
def test_a_secret_is_never_shown(path: str, edit: Edit) -> None:
    shows_no_secret(path, edit)
