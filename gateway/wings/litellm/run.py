"""`gateway import litellm FILE`: a configuration out of that of LiteLLM's proxy and of rows of its database, and a list
of what is not in it.

The sections of a file are converted in the order in which they need each other.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.commands.common import UsageError, fail, put
from gateway.commands.serve import count
from gateway.config.faults import ConfigError, ConfigFault, few, printable
from gateway.config.include import Place
from gateway.config.price_table import Unpriced, table_of, with_table_prices
from gateway.config.references import read_text

from .access import convert_access
from .budgets import CALENDAR, budget_of, number_of, plain
from .deployments import convert_models, unpriced
from .given import Converted, Given, section_of
from .providers import GEMINI

MAX_OUTPUT_TOKENS = 4096
MAX_ATTEMPTS = 10


def convert_settings(given: Given) -> dict[str, Any]:
    """Write all of them into the result; returns `defaults.models`."""
    values = given.done.values
    defaults: dict[str, Any] = {"max_output_tokens": MAX_OUTPUT_TOKENS}
    if (master := given.take("general_settings", "master_key")) is not None:
        token = given.reference(("general_settings", "master_key"), master, "LITELLM_MASTER_KEY")
        values["admin"] = {"token": token}
        given.note(("general_settings", "master_key"), "opens the admin API here, and no model")
    if isinstance(size := given.take("general_settings", "max_request_size_mb"), int | float):
        values.setdefault("server", {})["max_request_bytes"] = f"{size:g}MB"
    if isinstance(number := given.take("general_settings", "global_max_parallel_requests"), int):
        values.setdefault("server", {})["max_in_flight"] = number
    for section in ("litellm_settings", "router_settings"):
        if isinstance(retries := given.take(section, "num_retries"), int):
            defaults["max_attempts"] = min(MAX_ATTEMPTS, retries + 1)
        seconds = given.take(section, "timeout" if section == "router_settings" else "request_timeout")
        if isinstance(seconds, int | float) and seconds > 0:
            for upstream in values["upstreams"].values():
                upstream.setdefault("timeouts", {}).setdefault("total_s", seconds)
        _fallbacks(given, section)
    _probes(given)
    _lists(given)
    _budget(given)
    _aliases(given)
    _store(given)
    return defaults


def _fallbacks(given: Given, section: str) -> None:
    models = given.done.values["models"]
    for kind in ("fallbacks", "context_window_fallbacks"):
        entries = given.take(section, kind)
        for index, entry in enumerate(entries if isinstance(entries, list) else []):
            for name, others in entry.items() if isinstance(entry, dict) else ():
                place: Place = (section, kind, index)
                model = models.get(name)
                named = others if isinstance(others, list) else []
                found = [each for each in named if isinstance(each, str) and each in models]
                if model is None or found != others:
                    given.note(place, f"{printable(str(name))}: a model of it is not there")
                if model is not None and found:
                    model["fallbacks"] = list(dict.fromkeys([*model.get("fallbacks", []), *found]))


def _probes(given: Given) -> None:
    is_on = given.take("general_settings", "background_health_checks")
    seconds = number_of(given.take("general_settings", "health_check_interval"))
    if is_on is True and seconds:
        for upstream in given.done.values["upstreams"].values():
            upstream["probe_s"] = plain(seconds)


def _lists(given: Given) -> None:
    """`check_provider_endpoint` lists the models of a provider below a pattern of all of them."""
    if given.take("litellm_settings", "check_provider_endpoint") is not True:
        return
    values = given.done.values
    for name, model in values["models"].items():
        if not name.endswith("*"):
            continue
        inner = name.removeprefix(model.get("strip_prefix", ""))
        for route in model["routes"]:
            if "model" not in route and values["upstreams"][route["upstream"]]["base_url"] != GEMINI.base_url:
                values["upstreams"][route["upstream"]]["discover"] = True if inner == "*" else {"include": [inner]}
        if "strip_prefix" in model:
            given.note(
                ("litellm_settings", "check_provider_endpoint"),
                f"the models that an upstream lists have no prefix here: {printable(name)} serves them with it as well",
            )


def _budget(given: Given) -> None:
    budget = given.take("litellm_settings", "max_budget")
    duration = given.take("litellm_settings", "budget_duration")
    quota, note = budget_of(budget, duration)
    if quota is not None:
        given.done.values["quotas"] = [quota]
    if note:
        given.note(("litellm_settings", "budget_duration" if duration else "max_budget"), note)


def _people(given: Given) -> None:
    """Budgets of users who have none of their own, over all their keys."""
    params: Place = ("litellm_settings", "default_internal_user_params")
    amount, duration = given.take(*params, "max_budget"), given.take(*params, "budget_duration")
    place = (*params, "max_budget")
    for name in ("max_internal_user_budget", "max_user_budget"):
        other = given.take("litellm_settings", name)
        if amount is None and other is not None:
            amount, place = other, ("litellm_settings", name)
    other = given.take("litellm_settings", "internal_user_budget_duration")
    quota, note = budget_of(amount, duration or other)
    if quota is not None:
        given.done.values["people"] = {"defaults": {"quotas": [quota]}}
        note = f"holds over all keys of one owner (people.defaults), also of those whom LiteLLM has already; {note}"
    if note:
        given.note(place, note)


def _provider_budgets(given: Given, of_provider: Mapping[str, list[str]]) -> None:
    """A budget of a provider is that of its upstream, if it has one alone."""
    place: Place = ("router_settings", "provider_budget_config")
    for provider, rule in section_of(given.values, *map(str, place)).items():
        budget = section_of(rule)
        limit, period = budget.get("budget_limit", budget.get("max_budget")), budget.get("time_period")
        quota, note = budget_of(limit, period or budget.get("budget_duration"))
        names = of_provider.get(str(provider), [])
        if quota is None or quota["per"] not in CALENDAR:
            continue  # noted with the rest: an upstream has quotas of the calendar alone
        given.take(*place, provider)
        if len(names) == 1:
            given.done.values["upstreams"][names[0]]["quotas"] = [quota]
            given.note((*place, provider), f"is in upstreams.{names[0]}.quotas, and {note}")
        else:
            where = few(names, MAX_NAMED) or "no upstream"
            given.note((*place, provider), f"its models are at {where}: divide it among upstreams.NAME.quotas")


def _aliases(given: Given) -> None:
    aliases = given.take("router_settings", "model_group_alias")
    for name, to in aliases.items() if isinstance(aliases, dict) else ():
        place: Place = ("router_settings", "model_group_alias", name)
        target = to.get("model") if isinstance(to, dict) else to
        if target in given.done.values["models"] and name not in given.done.values["models"]:
            given.done.values.setdefault("aliases", {})[name] = target
        else:
            given.note(place, f"leads to {printable(str(target))}, which is no model here, or is a model itself")


def _store(given: Given) -> None:
    redis: Mapping[str, Any] = {
        name: given.take("router_settings", f"redis_{name}") for name in ("url", "host", "port", "password", "username")
    }
    store = given.done.values
    if redis["url"] is not None:
        store["store"] = {"url": given.reference(("router_settings", "redis_url"), redis["url"], "REDIS_URL")}
    elif redis["host"] is not None:
        login = ""
        if redis["password"] is not None:
            word = given.reference(("router_settings", "redis_password"), redis["password"], "REDIS_PASSWORD")
            login = f"{given.plain(redis['username']) or ''}:{word}@"
        url = f"redis://{login}{given.plain(redis['host'])}:{given.plain(redis['port']) or 6379}/0"
        store["store"] = {"url": url}
    if "store" in store:
        place: Place = ("router_settings", "redis_url" if redis["url"] is not None else "redis_host")
        given.note(place, "holds keys, quotas and usage here, not only a cache: it needs an append-only file")


MAX_NAMED = 10
"""Models that a note names."""


def convert(text: str, file: str, now: datetime, read_file: Callable[[str], str] = read_text) -> Converted:
    """Convert a file of LiteLLM's proxy, with all that it includes. Raises `ConfigError` where it is no such file or
    nothing can be served."""
    given = Given(text, file, read_file)
    if not isinstance(given.values.get("model_list"), list):
        raise ConfigError([ConfigFault("model_list", "is not there: expected a configuration of LiteLLM's proxy")])
    table = table_of(None, now)

    def find_price(provider: str, model: str) -> Mapping[str, Any] | None:
        found = table.find(provider, model)
        return None if isinstance(found, Unpriced) else found

    of_provider = convert_models(given, find_price)
    values = given.done.values
    if not values["models"]:
        given.note_the_rest()
        raise ConfigError([*given.done.notes, ConfigFault("model_list", "holds no model that can be converted")])
    defaults = {"models": convert_settings(given)}
    if keys := convert_access(given):
        defaults["keys"] = keys
    # The defaults come first: they are about every model.
    _provider_budgets(given, of_provider)
    _people(given)
    values["defaults"] = defaults
    values["models"] = values.pop("models")
    _note_unpriced(given, now)
    given.note_the_rest()
    return given.done


def _note_unpriced(given: Given, now: datetime) -> None:
    """Notes models without a price, because this gateway refuses them under a budget; LiteLLM serves them and counts
    nothing."""
    values = given.done.values
    if not {"quotas", "people"} & values.keys() and "quotas" not in values["defaults"].get("keys", {}):
        return
    names = [printable(name) for name in unpriced(with_table_prices(values, now))]
    if names:
        given.note(
            ("litellm_settings", "max_budget"),
            f"calls of models without a price are refused under a budget, and LiteLLM does not count them: write "
            f"models.NAME.price for {few(names, MAX_NAMED)}; zero where they cost nothing",
        )


if TYPE_CHECKING:
    from .given import Converted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command."""
    parser.add_argument("file", nargs="?", metavar="FILE", help="LiteLLM's config.yaml")
    parser.add_argument(
        "--database", action="append", default=[], metavar="FILE",
        help="rows of its tables of keys, teams, budgets and users as JSON or CSV; may be given again. Without FILE, "
        "a file of keys and teams alone is written, for include:",
    )  # fmt: skip
    parser.add_argument("--config", default="gateway.yaml", metavar="FILE", help="to write; default: gateway.yaml")
    parser.add_argument("--force", action="store_true", help="replace the file if it is there")


def run(args: argparse.Namespace) -> int:
    """Convert, write, and list what is not converted; returns the exit code. Raises `UsageError`."""
    import yaml

    if args.file is None and not args.database:
        raise UsageError("expected LiteLLM's config.yaml, or --database FILE, or both")
    target = Path(args.config)
    if target.exists() and not args.force:
        return fail(f"{target} is there already; name another with --config, or replace it with --force", code=2)
    try:
        done = _converted(args)
    except ConfigError as error:
        return fail(*[fault.located(args.file or "") for fault in error.faults], code=2)
    dumped = yaml.safe_dump(done.values, sort_keys=False, allow_unicode=True, width=110)
    source = Path(args.file or args.database[0]).name
    head = f"# Converted from {source} by gateway import litellm. Every setting: docs/configuration.md\n"
    try:
        with target.open("w" if args.force else "x", encoding="utf-8") as opened:
            opened.write(head + dumped)
    except OSError as error:
        return fail(f"cannot write {target}: {(error.strerror or str(error)).lower()}")
    lines = [
        f"{target} is written: {_content(done)}.",
        *(["Not converted, or different here:", *[f"  {note.located()}" for note in done.notes]] if done.notes else []),
        *([f"Variables to set: {', '.join(done.variables)}"] if done.variables else []),
        *([] if args.database else ["Keys and teams are in LiteLLM's database: see docs/from-litellm.md, Keys."]),
        *([] if args.file is None else ["Next:"]),
        *([] if args.file is None else [f"  gateway {each} --config {target}" for each in ("check", "serve")]),
    ]
    return put("".join([f"{line}\n" for line in lines]))


def _converted(args: argparse.Namespace) -> Converted:
    """Converts the file and the rows of the databases. Raises `ConfigError`."""
    from .database import add_rows, read_rows
    from .given import Converted

    now = datetime.now(UTC)
    done = Converted() if args.file is None else convert(_read(args.file), args.file, now)
    tables: dict[str, list[Mapping[str, Any]]] = {}
    for file in args.database:
        for name, rows in read_rows(_read(file), file).items():
            tables.setdefault(name, []).extend(rows)
    if tables:
        add_rows(done, tables, now)
    return done


def _read(file: str) -> str:
    """Reads a text file in UTF-8. Raises `ConfigError` if that fails."""
    try:
        return Path(file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError([ConfigFault("", f"cannot read {file}: {reason}")]) from None


def _content(done: Converted) -> str:
    values = done.values
    parts = []
    if "models" in values:
        parts.append(f"{count(len(values['models']), 'model')} at {count(len(values['upstreams']), 'upstream')}")
    if "keys" in values or "teams" in values:
        parts.append(f"{count(len(values.get('keys', [])), 'key')} in {count(len(values.get('teams', {})), 'team')}")
    return ", ".join(parts) or "nothing"
