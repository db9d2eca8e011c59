"""`gateway when-above`: the steps of a key, team or person; the operations of the admin API, on the store itself."""

from __future__ import annotations

import argparse
from typing import Any, cast
from urllib.parse import quote

from gateway.commands.common import UsageError
from gateway.commands.place import RemoteGateway
from gateway.commands.registry import Actions, Place, actor, add_shape, carry_out, format_row, read
from gateway.commands.registry import run as run
from gateway.commands.remote import RemoteRegistry
from gateway.config.quantities import read_count
from gateway.keys.registry import Registry, Shown
from gateway.quota.notation import NONE
from gateway.quota.scopes import PERSON

from .steps import KINDS, StepManager

PATHS = {"key": "keys", "team": "teams", PERSON: "people"}
CI = "gateway when-above set key:ci --config gateway.yaml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = Actions(parser)
    show = actions.add("show", "show the steps that count", _show, "gateway when-above show team:platform")
    given = actions.add(
        "set", "give steps in place of those before", _set,
        f"{CI} --step 80%=gpt-4o-mini --step 95%=gpt-4.1-nano", f"{CI} --step '90%:claude-*=claude-haiku-4-5'",
        f"{CI} --step none                                  (it keeps its models)",
    )  # fmt: skip
    clear = actions.add(
        "clear", "take them away: those of the role or of all others count again", _clear,
        "gateway when-above clear person:alice@example.org --config gateway.yaml",
    )  # fmt: skip
    for each in (show, given, clear):
        each.add_argument("scope", metavar="SCOPE", help=", ".join(f"{kind}:NAME" for kind in KINDS))
        add_shape(each)
    given.add_argument(
        "--step", action="append", required=True, metavar="SHARE[:PATTERN]=MODEL",
        help="from this share of a quota of money on, the model serves in place of dearer ones; or none",
    )  # fmt: skip
    given.add_argument("--max-prompt-tokens", metavar="N", help="calls with longer prompts keep their model")


def read_step(text: str) -> dict[str, Any]:
    """`80%=MODEL`, or `80%:PATTERN=MODEL`. Raises `ValueError`."""
    left, sign, use = text.partition("=")
    share, colon, pattern = left.partition(":")
    if not sign or not use or not share or (colon and not pattern):
        raise ValueError("expected SHARE=MODEL or SHARE:PATTERN=MODEL, such as 80%=gpt-4o-mini")
    return {"share": share, "use": use} | ({"model": pattern} if pattern else {})


def _show(args: argparse.Namespace, place: Place) -> str:
    path = _path(args.scope)

    async def show(registry: Registry) -> Shown:
        if isinstance(place, RemoteGateway):
            return await cast("RemoteRegistry", registry).ask("GET", path)
        manager: StepManager = registry.viewed_as(StepManager)
        return await manager.show_steps(args.scope)

    return format_row(args, carry_out(place, show, makes_store=False))


def _set(args: argparse.Namespace, place: Place) -> str:
    steps = [] if args.step == [NONE] else [read("--step", read_step, text) for text in args.step]
    if args.max_prompt_tokens is not None:
        most = read("--max-prompt-tokens", read_count, args.max_prompt_tokens)
        steps = [{**step, "max_prompt_tokens": most} for step in steps]
    return _given(args, place, steps)


def _clear(args: argparse.Namespace, place: Place) -> str:
    return _given(args, place, None)


def _given(args: argparse.Namespace, place: Place, steps: list[dict[str, Any]] | None) -> str:
    path = _path(args.scope)

    async def give(registry: Registry) -> Shown:
        if isinstance(place, RemoteGateway):
            return await cast("RemoteRegistry", registry).change("PUT", path, {"steps": steps})
        manager: StepManager = registry.viewed_as(StepManager).warning(registry.warn)
        return await manager.set_steps(args.scope, steps, actor("when-above"))

    return format_row(args, carry_out(place, give))


def _path(scope: str) -> str:
    """Its path in the admin API. Raises `UsageError`."""
    kind, _, name = scope.partition(":")
    if kind not in PATHS or not name:
        raise UsageError(f"argument SCOPE: expected {', '.join(f'{each}:NAME' for each in KINDS)}")
    return f"{PATHS[kind]}/{quote(name, safe='')}/when_above"
