"""`gateway alerts test`: one message to each receiver of alerts, once, in the form of its alerts.

A receiver with form pagerduty gets an incident and its end. Exit code 1 where a receiver did not take it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Mapping
from html import escape

from gateway.commands.common import UsageError, put
from gateway.commands.place import RemoteGateway, add_config
from gateway.config import Config
from gateway.quota.windows import format_time

from .channels import Sender, senders_of
from .forms import Notice, body_of
from .routing import Subject
from .settings import OWNER, AlertReceiver, AlertSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", required=True, metavar="ACTION")
    test = actions.add_parser("test", help="send a test alert to each receiver, or to those that are named")
    test.add_argument("receivers", nargs="*", metavar="RECEIVER", help="names of alerts.receivers, or webhook")
    test.add_argument(
        "--owner", metavar="PERSON", help="whom receivers with email: [owner] mail to; without it they are left out"
    )
    add_config(test)


def run(args: argparse.Namespace, place: Config | RemoteGateway) -> int:
    """Returns the exit code. Raises `UsageError`."""
    assert isinstance(place, Config)
    settings = place.section(AlertSettings)
    receivers = settings.all_receivers
    if unknown := [name for name in args.receivers if name not in receivers]:
        known = f"known are {', '.join(receivers)}" if receivers else "the file has none: see alerts.receivers"
        raise UsageError(f"no receiver is called {unknown[0]!r}; {known}")
    chosen = {name: each for name, each in receivers.items() if not args.receivers or name in args.receivers}
    if not chosen:
        raise UsageError("the file has no receiver of alerts: see alerts.webhook and alerts.receivers")
    came = asyncio.run(_send(settings, chosen, place.store.namespace, args.owner))
    lines = [f"  {'sent' if good else 'FAILED':<7} {name}, {chosen[name].shown}: {what}\n" for name, what, good in came]
    return put("".join(lines)) or int(not all(good for _, _, good in came))


async def _send(
    settings: AlertSettings, chosen: Mapping[str, AlertReceiver], namespace: str, owner: str | None
) -> list[tuple[str, str, bool]]:
    senders = senders_of(settings)
    try:
        return [
            (name, *await _send_one(senders.get(name), receiver, settings.addresses, namespace, owner))
            for name, receiver in chosen.items()
        ]
    finally:
        for sender in senders.values():
            await sender.close()


async def _send_one(
    sender: Sender | None, receiver: AlertReceiver, addresses: Mapping[str, str], namespace: str, owner: str | None
) -> tuple[str, bool]:
    """Returns the result in words, and whether it is good."""
    if sender is None:
        return "alerts.smtp is not set", False
    notice = _notice(namespace, owner)
    body = body_of(notice, receiver, addresses)
    if receiver.email and not body["to"]:
        return f"not tried: name the {OWNER} with --owner", True
    result = await sender.post(json.dumps(body, ensure_ascii=False).encode())
    if result.is_taken and receiver.form == "pagerduty":
        over = body_of(notice._replace(is_over=True), receiver, addresses)
        result = await sender.post(json.dumps(over).encode())
    return result.detail, result.is_taken


def _notice(namespace: str, owner: str | None) -> Notice:
    text = f"A test of this receiver by the gateway {namespace}: nothing is wrong."
    at = format_time(int(time.time() * 1e6))
    facts = {"text": escape(text, quote=False), "type": "test", "gateway": namespace, "time": at}
    return Notice(Subject("key", owner=owner), text, facts, "test")
