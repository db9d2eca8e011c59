"""Where a command works: on the store of a configuration, or over the network with the admin API of a running gateway.

`--config FILE`, `GATEWAY_CONFIG` or `./gateway.yaml`; or `--url URL` or `GATEWAY_URL`, with the token in
`GATEWAY_TOKEN` or in a file (`--token-file`): an argument would be visible to other users of the machine. An option
counts before the environment, and there an address before a file.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

if TYPE_CHECKING:
    from gateway.config import Config

    from .remote import RemoteRegistry

T = TypeVar("T")


class RemoteGateway(NamedTuple):
    """The admin API of a running gateway."""

    url: str
    """Its address, without a slash at the end."""
    token: str

    def __repr__(self) -> str:
        return f"<RemoteGateway {self.url}>"


def on_gateway(place: RemoteGateway, work: Callable[[RemoteRegistry], Awaitable[T]]) -> T:
    """Calls `remote.on_gateway`. The import is local, so that only commands that need its client load it."""
    from . import remote

    return remote.on_gateway(place.url, place.token, work)


DEFAULT_FILE = "gateway.yaml"
"""File in the working directory, used where neither an option nor the environment names a file or an address."""
_CONFIG_HELP = f"the configuration, in YAML; default: GATEWAY_CONFIG, else {DEFAULT_FILE}"


def add_config(parser: argparse.ArgumentParser, *, is_needed: bool = True) -> None:
    """`--config`, for a command that needs the file itself, or, without `is_needed`, reads it where there is one."""
    known = os.environ.get("GATEWAY_CONFIG") or _default_file()
    parser.add_argument(
        "--config", default=known, required=is_needed and known is None, metavar="FILE", help=_CONFIG_HELP
    )


def _default_file() -> str | None:
    return DEFAULT_FILE if Path(DEFAULT_FILE).is_file() else None


def add_place(parser: argparse.ArgumentParser) -> None:
    """`--config`, or `--url` and `--token-file`."""
    places = parser.add_mutually_exclusive_group()
    places.add_argument("--config", metavar="FILE", help=_CONFIG_HELP)
    places.add_argument("--url", metavar="URL", help="a running gateway, instead of --config; default: GATEWAY_URL")
    parser.add_argument("--token-file", metavar="FILE", help="file with the token for --url; default: GATEWAY_TOKEN")


def chosen(args: argparse.Namespace, read_config: Callable[[str], Config]) -> Config | RemoteGateway:
    """The place that arguments and environment name. Raises `ConfigError`, and `UsageError` where there is none."""
    from .common import UsageError

    url, file = getattr(args, "url", None), args.config
    if url is None and file is None and hasattr(args, "url"):
        url, file = os.environ.get("GATEWAY_URL") or None, os.environ.get("GATEWAY_CONFIG") or None
    if url is None:
        file = file or _default_file()
        if file is None:
            raise UsageError(
                "expected --config FILE or --url URL, or one of the variables GATEWAY_CONFIG and GATEWAY_URL, or a "
                f"{DEFAULT_FILE} here"
            )
        args.config = file
        return read_config(file)
    if not url.startswith(("https://", "http://")):
        raise UsageError("argument --url: expected an address like https://gateway.example.org")
    return RemoteGateway(url.rstrip("/"), _token(args))


def _token(args: argparse.Namespace) -> str:
    from .common import UsageError

    if args.token_file is not None:
        try:
            token = Path(args.token_file).read_text(encoding="utf-8-sig").strip()
        except (OSError, ValueError):
            raise UsageError(f"argument --token-file: cannot read {args.token_file}") from None
    else:
        token = os.environ.get("GATEWAY_TOKEN", "").strip()
    if not token or not token.isascii() or not token.isprintable():
        raise UsageError("a token is needed for --url: in the variable GATEWAY_TOKEN, or in the file of --token-file")
    return token
