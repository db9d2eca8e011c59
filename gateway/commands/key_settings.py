"""The settings of a key as options of `gateway keys create` and `update`: one row for each member of the request body.

`quotas`, `limits` and `labels` are no rows: a change of one of them keeps the others, so `keys.py` merges them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, get_args

from gateway.config import Priority
from gateway.config.quantities import is_duration, read_count, read_duration_s
from gateway.quota.notation import NONE, read_moment

from .registry import names_of, read


class Setting(NamedTuple):
    """One option. `read` raises `ValueError` for what it cannot read; None: the value is a list of names."""

    option: str
    help: str
    metavar: str | None = None
    choices: tuple[str, ...] = ()
    read: Callable[[str], Any] | None = str
    none: Any = None
    """The meaning of `none` for `keys create`; for `keys update` it is always the default."""


def _moment(text: str) -> str:
    moment = read_moment(text, datetime.now(UTC))
    return text if is_duration(text) else moment  # a duration begins where the key is made


KEY_SETTINGS: Mapping[str, Setting] = {
    "team": Setting("--team", "its team"),
    "models": Setting("--models", "patterns with commas, such as 'gpt-4*'", "NAMES", read=None, none=["*"]),
    "expires": Setting(
        "--expires", "2027-01-01 (UTC), 2027-01-01T12:00:00+02:00, or 30d from now", "WHEN", read=_moment
    ),
    "ips": Setting("--ips", "with commas, such as 10.0.0.0/8", "NETWORKS", read=None, none=[]),
    "max_parallel": Setting("--max-parallel", "calls under way at once", "N", read=read_count),
    "on_exceeded": Setting("--on-exceeded", "shadow: count and report, never block", choices=("deny", "shadow")),
    "priority": Setting("--priority", "its class where calls wait for an upstream", choices=get_args(Priority)),
    "weight": Setting("--weight", "its share where calls wait for an upstream, 1 to 1000", "N", read=read_count),
    "max_wait_s": Setting(
        "--max-wait", "how long its calls may wait for an upstream, such as 20s", "TIME", read=read_duration_s
    ),
    "owner": Setting("--owner", "the person whose key it is, such as an e-mail address"),
    "note": Setting("--note", "text for people"),
}  # fmt: skip
"""Options of the settings of a key, by member of `CreateKey` and `UpdateKey`."""


def add_settings(parser: argparse.ArgumentParser) -> None:
    for name, setting in KEY_SETTINGS.items():
        parser.add_argument(
            setting.option, dest=name, help=setting.help, metavar=setting.metavar, choices=setting.choices or None,
            action="store" if setting.read else "append",
        )  # fmt: skip


def settings_of(args: argparse.Namespace, *, is_new: bool) -> dict[str, Any]:
    """The settings that were given; for `none`, what that means. Raises `UsageError`."""
    given: dict[str, Any] = {}
    for name, setting in KEY_SETTINGS.items():
        text = getattr(args, name)
        if text is None:
            continue
        if setting.read is None:
            value = names_of(setting.option, text)
        else:
            value = None if text == NONE else read(setting.option, setting.read, text)
        given[name] = setting.none if value is None and is_new else value
    return given
