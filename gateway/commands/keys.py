"""`gateway keys`: the same as the admin API, on the store itself.

`KEY_SETTINGS` has the options of `gateway keys create` and `update`, one row for each member of the request body but
`quotas`, `limits` and `labels`: a change of one of them keeps the others, so they are merged.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, get_args

from gateway.config import Priority
from gateway.config.quantities import QUOTA_EXAMPLES, is_duration, read_count, read_duration_s
from gateway.keys.registry import CreatedKey, Registry
from gateway.quota.notation import NONE, read_moment
from gateway.reports.registry import KEYS, KEYS_IN_TABLE, format_one
from gateway.reports.table import format_json

from .common import PAGE, UsageError, warn
from .registry import (
    Actions,
    Place,
    actor,
    add_quotas,
    add_shape,
    carry_out,
    every_row,
    format_row,
    format_rows,
    limits_of,
    merged,
    names_of,
    one_name,
    quotas_of,
    read,
)
from .registry import run as run
from .windows import add_window_actions


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


EXAMPLE = "gateway keys create --config gateway.yaml --id alice --team platform"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = Actions(parser)
    create = actions.add(
        "create", "make a key; its secret is shown once", _create,
        f"{EXAMPLE} --models 'gpt-4*' --expires 2027-01-01",
        f"{EXAMPLE} --tokens 1M/day --requests 60/minute --usd 50/month",
        "KEY=$(gateway keys create --config gateway.yaml --id ci --quiet)",
    )  # fmt: skip
    create.add_argument("name", nargs="?", metavar="ID", help=argparse.SUPPRESS)
    create.add_argument(
        "--id", "--name", dest="named", metavar="ID", help="its public name, for ever: [a-z0-9][a-z0-9_.-]*"
    )
    _add_settings(create, "a quota")
    add_shape(create, quiet="the secret alone")

    listed = actions.add("list", "list all keys, of file and store", _list)
    listed.add_argument("--team", help="only keys of this team")
    add_shape(listed, csv=True)

    show = actions.add("show", "show one key", _show)
    show.add_argument("name", metavar="ID")
    add_shape(show)

    update = actions.add(
        "update", "change settings of a key; others stay unchanged", _update,
        "gateway keys update alice --config gateway.yaml --tokens 2M/day             (set, or added)",
        "gateway keys update alice --config gateway.yaml --tokens none/day           (taken away)",
        "gateway keys update alice --config gateway.yaml --expires none --limit n=2",
    )  # fmt: skip
    update.add_argument("name", metavar="ID")
    _add_settings(update, "set this quota, or add it; none/TIME takes it away")
    add_shape(update)

    rotate = actions.add(
        "rotate", "give a key another secret, shown once", _rotate,
        "gateway keys rotate alice --config gateway.yaml --overlap 1h",
    )  # fmt: skip
    rotate.add_argument("name", metavar="ID")
    rotate.add_argument("--overlap", default="0", metavar="TIME", help="how long the old one still works; default: 0")
    add_shape(rotate, quiet="the secret alone")

    revoke = actions.add("revoke", "refuse a key for ever", _revoke)
    revoke.add_argument("name", metavar="ID")
    revoke.add_argument("--yes", action="store_true", help="do not ask on a terminal")
    add_shape(revoke)

    for name, what, act in (
        ("pause", "refuse a key until it is resumed", _pause), ("resume", "accept a paused key again", _resume),
        ("delete", "delete a key that was never used; its id is free then", _delete),
    ):  # fmt: skip
        action = actions.add(name, what, act)
        action.add_argument("name", metavar="ID")
        add_shape(action)
    add_window_actions(actions, "keys", "key", "alice")


def _add_settings(parser: argparse.ArgumentParser, quota: str) -> None:
    for name, setting in KEY_SETTINGS.items():
        parser.add_argument(
            setting.option, dest=name, help=setting.help, metavar=setting.metavar, choices=setting.choices or None,
            action="store" if setting.read else "append",
        )  # fmt: skip
    parser.add_argument(
        "--limit", action="append", metavar="NAME=N", help="such as n=4, max_tokens=1024, deny=logprobs"
    )
    parser.add_argument(
        "--label", action="append", metavar="NAME=VALUE", help="such as cost-center=x; NAME= takes away"
    )
    add_quotas(parser, quota)


def _labels(texts: Sequence[str], known: Mapping[str, str]) -> dict[str, str]:
    """Labels with those that were named set, or without those that have no value. Raises `UsageError`."""
    labels = dict(known)
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise UsageError("argument --label: expected NAME=VALUE, such as cost-center=x")
        labels.pop(name, None)
        if value:
            labels[name] = value
    return labels


def _create(args: argparse.Namespace, place: Place) -> str:
    body = {"id": one_name(args, "--id"), **settings_of(args, is_new=True)}
    if quotas_of(args):  # which reads them, so that a fault names its option
        body["quota_changes"] = {unit: texts for unit in QUOTA_EXAMPLES if (texts := getattr(args, unit))}
    if args.limit:
        body["limits"] = limits_of(args.limit)
    if args.label:
        body["labels"] = _labels(args.label, {})
    issued = carry_out(place, lambda registry: registry.create_key(body, actor("keys")))
    return _format_secret(args, issued, "is made; its secret")


def _list(args: argparse.Namespace, place: Place) -> str:
    rows = every_row(place, lambda registry, after: registry.list_keys(after, PAGE, args.team))
    return format_rows(args, KEYS, rows, KEYS_IN_TABLE)


def _show(args: argparse.Namespace, place: Place) -> str:
    return format_row(args, carry_out(place, lambda registry: registry.show_key(args.name), makes_store=False))


def _update(args: argparse.Namespace, place: Place) -> str:
    changes, quotas = settings_of(args, is_new=False), quotas_of(args)
    if not (changes or quotas or args.limit or args.label):
        raise UsageError("nothing to change: name a setting, such as --tokens 2000000/day")

    async def change(registry: Registry) -> dict[str, Any]:
        if quotas or args.limit or args.label:
            known = await registry.show_key(args.name)
            if quotas:
                changes["quotas"] = merged(known["quotas"], quotas)
            if args.limit:
                changes["limits"] = limits_of(args.limit, known["limits"])
            if args.label:
                changes["labels"] = _labels(args.label, known["labels"])
        return await registry.update_key(args.name, changes, actor("keys"))

    return format_row(args, carry_out(place, change))


def _rotate(args: argparse.Namespace, place: Place) -> str:
    overlap_s = read("--overlap", read_duration_s, args.overlap)
    issued = carry_out(place, lambda registry: registry.rotate_key(args.name, overlap_s, actor("keys")))
    return _format_secret(args, issued, "has another secret, which")


def _revoke(args: argparse.Namespace, place: Place) -> str:
    """Raises `UsageError` where the person at the terminal does not confirm it."""
    if not args.yes and sys.stdin.isatty() and sys.stderr.isatty():
        print(
            f"A revoked key is refused for ever; gateway keys pause {args.name} can be undone. "
            f"Type {args.name} to revoke it: ", end="", file=sys.stderr, flush=True,
        )  # fmt: skip
        if sys.stdin.readline().strip() != args.name:
            raise UsageError(f"{args.name} is not revoked")
    return format_row(args, carry_out(place, lambda registry: registry.revoke_key(args.name, actor("keys"))))


def _pause(args: argparse.Namespace, place: Place) -> str:
    role = "operator"
    row = carry_out(place, lambda registry: registry.pause_key(args.name, role, lambda by: by != role, actor("keys")))
    return format_row(args, row)


def _resume(args: argparse.Namespace, place: Place) -> str:
    row = carry_out(place, lambda registry: registry.resume_key(args.name, lambda _: None, actor("keys")))
    return format_row(args, row)


def _delete(args: argparse.Namespace, place: Place) -> str:
    carry_out(place, lambda registry: registry.delete_key(args.name, actor("keys")))
    if args.shape == "json":
        return format_json({"object": "key", "id": args.name, "deleted": True})
    return f"The key {args.name} is gone.\n"


def _format_secret(args: argparse.Namespace, issued: CreatedKey, what: str) -> str:
    """A key and its secret, which is alone in the last line. Warnings go to standard error."""
    for warning in issued.warnings:
        warn(warning)
    if args.shape == "json":
        return format_json(issued.key | {"secret": issued.secret})
    if args.shape == "quiet":
        return f"{issued.secret}\n"
    name = issued.key["id"]
    return f"{format_one(issued.key)}\nThe key {name} {what} is shown this once:\n\n{issued.secret}\n"
