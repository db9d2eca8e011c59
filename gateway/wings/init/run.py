"""`gateway init`: calls an upstream, finds its models and writes a configuration of a few lines.

On a terminal it asks for what is not given. The API key is never an argument: its environment variable is named.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple
from urllib.parse import urlsplit

from gateway.commands.common import UsageError, fail, put
from gateway.wings import parts

WITHIN_S = 10.0
"""Time limit in seconds for one answer of the upstream."""

KEY_VARIABLES: Mapping[str, str] = {
    "api.openai.com": "OPENAI_API_KEY",
    "openrouter.ai": "OPENROUTER_API_KEY",
    "api.groq.com": "GROQ_API_KEY",
    "api.mistral.ai": "MISTRAL_API_KEY",
    "api.together.xyz": "TOGETHER_API_KEY",
    "api.deepseek.com": "DEEPSEEK_API_KEY",
    "api.yescale.io": "YESCALE_API_KEY",
}
"""The variables that the providers' own pages use, by host."""

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1", "host.docker.internal"})
"""Hosts of servers such as vLLM and Ollama, which need no key."""

PATHS = ("", "/v1", "/api/v1", "/openai/v1")
"""Tried behind the address of an unknown provider, in this order."""

MAX_OUTPUT_TOKENS = 4096
"""The smallest maximum of the chat models that are in use: a larger limit would be refused by some."""

JOURNAL_DIR = "./gateway-journal"

REASONING_TIMEOUTS = "{head_s: 300, idle_s: 300, total_s: 1800}"
"""Reasoning models send nothing for minutes before their answer, and coding agents have answers of many minutes. The
defaults (60, 60, 600) suit an upstream with another route behind it, which a new configuration has not."""

_DISCOVERED = f"""\
defaults: {{models: {{max_output_tokens: {MAX_OUTPUT_TOKENS}}}}}   # for chats that set no limit
# models: {{gpt-4o-mini: ...}}   # a name or pattern of its own has its own settings"""
_BY_PATTERN = f"""\
models:   # "*" is every model of the upstream; a name or pattern of its own has its own settings
  "*": {{routes: [{{upstream: "NAME"}}], max_output_tokens: {MAX_OUTPUT_TOKENS}}}   # for chats that set no limit"""
"""Models of a configuration for an upstream whose list could not be read."""

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_ENDPOINT = re.compile(r"/(?:chat/completions|completions|embeddings|responses|models)/?$")


class Found(NamedTuple):
    """The result of asking an upstream."""

    base_url: str
    models: Sequence[str]
    problems: Sequence[str]
    """The requests, with their outcomes; empty where the models were found."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Call an upstream, find its models and write a configuration."
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = (
        "examples:\n  gateway init                      (asks)\n"
        "  gateway init --url https://api.openai.com/v1 --key-variable OPENAI_API_KEY --key ada\n"
        "  gateway init --url http://127.0.0.1:11434/v1 --no-key\n  gateway init --url bedrock   (or azure, vertex)\n"
    )
    parser.add_argument("--url", metavar="URL", help="address of the upstream's API, such as https://api.openai.com/v1")
    credential = parser.add_mutually_exclusive_group()
    credential.add_argument(
        "--key-variable", metavar="NAME", help="the environment variable that holds the upstream's API key"
    )
    credential.add_argument("--no-key", action="store_true", help="the upstream needs no key")
    parser.add_argument("--name", metavar="NAME", help="the upstream's name in the file; default: by its host")
    parser.add_argument("--config", default="gateway.yaml", metavar="FILE", help="default: gateway.yaml")
    parser.add_argument("--key", metavar="ID", help="make a first key of this name as well; its secret is shown once")
    parser.add_argument("--force", action="store_true", help="replace the file if it is there")
    parser.add_argument("--anyway", action="store_true", help="write the file also if the upstream cannot be reached")


def run(args: argparse.Namespace) -> int:
    """Ask, call, write and print the next steps; returns the exit code."""
    is_asked = sys.stdin.isatty() and sys.stdout.isatty()
    try:
        return _init(args, _asked if is_asked else None)
    except UsageError as error:
        return fail(*error.args, code=2)
    except EOFError:
        return fail("nothing was written")


Ask = Callable[[str, str], str]
"""Asks a question with a default."""


def _asked(question: str, default: str) -> str:
    return input(f"{question}{f' [{default}]' if default else ''}: ").strip() or default


def _init(args: argparse.Namespace, ask: Ask | None) -> int:
    file = Path(args.config)
    if file.exists() and not args.force:
        raise UsageError(f"{file} is there already; name another with --config, or replace it with --force")
    url = _url(args.url, ask)
    for wing in parts(SimpleNamespace, "first_file"):
        key = args.key_variable and _checked(args.key_variable)
        if (drafted := wing.draft(url, key, args.no_key, ask)) is not None:
            text = _framed(*drafted)
            return _settle(args, ask, file, Found(url, (), wing.problems(text)), "", text)
    variable = _variable(args, url, ask)
    name = args.name or name_of(url)
    if not re.fullmatch(r"[\w.-]+", name):
        raise UsageError("argument --name: expected letters, digits, dots and dashes, such as openai")
    if variable and not os.environ.get(variable) and not args.anyway:
        raise UsageError(
            f"the environment variable {variable} is not set: set it (export {variable}=...) and run this again, or "
            "write the file without calling the upstream: --anyway"
        )
    print(f"Asking {url} for its models ...", file=sys.stderr, flush=True)
    found = asyncio.run(find_models(url, variable and os.environ.get(variable)))
    return _settle(args, ask, file, found, name, text_of(name, found, variable))


def _settle(args: argparse.Namespace, ask: Ask | None, file: Path, found: Found, name: str, text: str) -> int:
    """Write the file, if nothing is missing or it is wanted anyway."""
    from gateway.process.discovery import ModelDiscovery

    if found.problems and not args.anyway:
        print("".join([f"  {problem}\n" for problem in found.problems]), end="", file=sys.stderr)
        if ask is None or not ask("Write the file anyway? yes or no", "no").lower().startswith("y"):
            return fail("the upstream's models could not be read; correct the address or the key, or write the file "
                        "all the same: --anyway")  # fmt: skip
    try:
        _write(file, text, args.force)
        if found.models:
            ModelDiscovery(Path(JOURNAL_DIR)).learn(name, found.base_url, found.models)
    except OSError as error:
        return fail(f"cannot write {file}: {(error.strerror or str(error)).lower()}")
    return _finish(args, ask, file, found)


def _url(given: str | None, ask: Ask | None) -> str:
    if given is None and ask is None:
        raise UsageError("argument --url: is required without a terminal, such as https://api.openai.com/v1")
    wings = parts(SimpleNamespace, "first_file")
    question = "".join(["Address of the upstream's API", *[f", or {' or '.join(wing.words)}" for wing in wings]])
    url = given if given is not None else ask(question, "https://api.openai.com/v1") if ask else ""
    url = next((wing.address(url, ask) for wing in wings if url in wing.words), url)
    if "://" not in url:
        url = f"http://{url}" if url.partition(":")[0].partition("/")[0] in LOCAL_HOSTS else f"https://{url}"
    address = urlsplit(url)
    if address.scheme not in ("http", "https") or not address.hostname or address.username or address.query:
        raise UsageError("argument --url: expected an address such as https://api.openai.com/v1, without user or query")
    return _ENDPOINT.sub("", url).rstrip("/")


def _variable(args: argparse.Namespace, url: str, ask: Ask | None) -> str | None:
    """The name of the variable with the API key; None: there is no key."""
    host = urlsplit(url).hostname or ""
    usual = KEY_VARIABLES.get(host, "" if host in LOCAL_HOSTS else "UPSTREAM_API_KEY")
    if args.no_key:
        return None
    variable: str = args.key_variable or (
        ask("Name of the environment variable with its API key (never the key itself; - for none)", usual or "-")
        if ask
        else usual
    )
    return None if variable in ("", "-") else _checked(variable)


def _checked(variable: str) -> str:
    if not _VARIABLE.fullmatch(variable):
        raise UsageError(
            "expected the NAME of an environment variable in capitals, such as OPENAI_API_KEY. A key itself does not "
            "belong on a command line: if that was one, replace it, because shells and process lists keep it"
        )
    return variable


def name_of(url: str) -> str:
    """A short name for an upstream: `openai` for api.openai.com, `local` for this machine."""
    host = urlsplit(url).hostname or ""
    if host in LOCAL_HOSTS:
        return {11434: "ollama", 8000: "vllm"}.get(urlsplit(url).port or 0, "local")
    if re.fullmatch(r"[\d.]+|.*:.*", host):
        return "upstream"
    labels = [label for label in host.split(".") if label not in ("api", "www")]
    return labels[0] if len(labels) < 3 else labels[-2]


async def find_models(url: str, key: str | None) -> Found:
    """Ask an upstream for its models, below the address and below the usual paths of such an API."""
    from pydantic import ValidationError

    from gateway.config import Upstream
    from gateway.config.probable_mistakes import BASE_PATHS
    from gateway.upstream.ask import list_models

    problems = []
    parts = urlsplit(url)
    known = BASE_PATHS.get(parts.hostname or "")
    paths = ("",) if parts.path else PATHS if known is None else (known,)
    for path in paths:
        base = f"{url}{path}"
        try:
            settings = Upstream.model_validate({"base_url": base, "api_key": key or None, **_environment_proxy(base)})
        except ValidationError:
            return Found(url, (), ["the address or the key holds characters that cannot be sent"])
        reply, names = await list_models(settings, WITHIN_S)
        if names is not None:
            return Found(base, names, ())
        if reply.status in (401, 403):
            what = "the key was refused" if key else "it wants a key: name its variable with --key-variable"
            problems.append(f"GET {base}/models: answered {reply.status}: {what}")
            return Found(base, (), problems)
        outcome = reply.describe("it") if reply.status != 200 else "it answered 200, and not with a list of models"
        problems.append(f"GET {base}/models: {outcome}")
        if reply.status is None:
            break
    return Found(url if parts.path else f"{url}{known or '/v1'}", (), problems)


def _environment_proxy(base_url: str) -> dict[str, str]:
    """The proxy of the environment for this address, as `gateway serve` would use it. Raises `UsageError` for one that
    cannot be used."""
    from gateway.config.proxies import apply_environment

    values = {"upstreams": {"it": {"base_url": base_url}}}
    if faults := list(apply_environment(values, os.environ)):
        raise UsageError(faults[0].message)
    proxy = values["upstreams"]["it"].get("proxy")
    return {"proxy": proxy} if proxy else {}


def text_of(name: str, found: Found, variable: str | None) -> str:
    upstream = f"base_url: {json.dumps(found.base_url)}"
    if variable:
        upstream += f', api_key: "${{{variable}}}"'
    if urlsplit(found.base_url).hostname in LOCAL_HOSTS:
        upstream += ", capabilities: {max_tokens_field: max_tokens}"
    if found.models:
        upstream += ", discover: true"
    shown = f"serves what it lists: {len(found.models)} models when this was written" if found.models else "not asked"
    models = _DISCOVERED if found.models else _BY_PATTERN.replace("NAME", name)
    return _framed([f'"{name}": {{{upstream}}}   # {shown}'], models)


def _framed(upstreams: Sequence[str], models: str) -> str:
    """The file with these lines of upstreams, each of which ends in `}` and perhaps a comment."""
    lines = "\n  ".join([f", timeouts: {REASONING_TIMEOUTS}}}".join(each.rpartition("}")[::2]) for each in upstreams])
    return f"""\
# Made by gateway init. Every setting: docs/configuration.md. After a change: gateway check --config FILE
store: {{url: "embedded:./gateway-data", journal_dir: {JOURNAL_DIR}}}   # or redis://host:6379/0
upstreams:   # timeouts for models that reason in silence; the defaults are 60, 60, 600
  {lines}
{models}
# admin: {{token: "${{GATEWAY_ADMIN_TOKEN}}"}}   # the admin API, and the dashboard at /dashboard
"""


def _write(file: Path, text: str, is_replaced: bool) -> None:
    with file.open("w" if is_replaced else "x", encoding="utf-8") as opened:
        opened.write(text)


def _finish(args: argparse.Namespace, ask: Ask | None, file: Path, found: Found) -> int:
    lines = [f"{file} is written: {_models(found)}."]
    if found.problems:
        lines += ["The upstream was not reached:", *[f"  {problem}" for problem in found.problems]]
    key = args.key or (ask("Name of a first key for calls (- for none)", "me") if ask and not found.problems else None)
    if key and key != "-":
        secret = _make_key(str(file), key)
        if secret is None:
            return 1
        lines += [f"The key {key} is made; it is shown this once:", "", f"  {secret}", ""]
        commands = [f"gateway check --config {file}", f"gateway serve --config {file}"]
    else:
        commands = [f"gateway keys create --config {file} --id me", f"gateway serve --config {file}"]
    return put("\n".join([*lines, "Next:", *[f"  {command}" for command in commands], ""]))


def _models(found: Found) -> str:
    if not found.models:
        return "its models are not known yet"
    shown = ", ".join(found.models[:5])
    return f"{len(found.models)} models ({shown}{', ...' if len(found.models) > 5 else ''})"


def _make_key(file: str, key: str) -> str | None:
    """Make the first key as `gateway keys create` does; None where that failed, after its error was printed."""
    from gateway.commands.registry import actor, carry_out
    from gateway.config import ConfigError
    from gateway.config.source import Source
    from gateway.errors import GatewayError
    from gateway.store import StoreMisconfigured, StoreUnavailable

    try:
        config = Source(file, os.environ).read().config
        return carry_out(config, lambda registry: registry.create_key({"id": key}, actor("init"))).secret
    except ConfigError as error:
        fail(f"{file} is written, but no key is made:", *[str(fault) for fault in error.faults])
    except (GatewayError, StoreMisconfigured, StoreUnavailable, OSError) as error:
        fail(f"{file} is written, but no key is made: {getattr(error, 'message', error)}")
    return None
