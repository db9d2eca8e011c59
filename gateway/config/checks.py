"""Checks between fields, and the messages for faults of single fields."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from .discovered import is_wanted
from .faults import ConfigFault, format_faults, printable
from .model_names import compiled, is_pattern, may_overlap, most_specific_first, with_targets
from .rates import BESIDE_TOKENS
from .sections import (
    BAD_SIGNS,
    MAX_PERSON,
    NAME_PATTERN,
    AdminSettings,
    Config,
    Discovery,
    FileKey,
    FileSettings,
    KeyDefaults,
    Model,
    ModelSettings,
    PersonLimits,
    Quota,
    Section,
    ServerSettings,
    Upstream,
)
from .wings import WingRows, model_kinds, wing_rows


def _names_at(path: tuple[str | int, ...], root: type[BaseModel]) -> list[str]:
    """The settings that exist at this place below `root`."""
    at: type[BaseModel] | None = root
    for part in path:
        if at is not None and part in at.model_fields:  # else an index, or a name that the operator chose
            at = next(_sections_in(at.model_fields[str(part)].annotation), None)
    return list(at.model_fields) if at is not None else []


def _sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections in the type of a field, such as Upstream in `dict[str, Upstream]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _sections_in(part)


HABITS: Mapping[str, str] = {
    **dict.fromkeys(("listen", "bind"), "write host and port apart (server.host, server.port)"),
    **dict.fromkeys(
        ("tls_cert", "tls_key", "ssl_certfile", "tls"),
        "the gateway does not speak TLS to clients: put nginx, Caddy or an ingress in front (deploy/)",
    ),
    **dict.fromkeys(("eur", "dollars"), "money is in US dollars: usd"),
    **dict.fromkeys(
        ("budget", "max_budget", "budget_duration"), "a budget is a quota: quotas: [{usd: 20, per: month}]"
    ),
    "rpm": "a rate is a quota: quotas: [{requests: 60, per: minute}]",
    "tpm": "a rate is a quota: quotas: [{tokens: 100000, per: minute}]",
    "prompt": "the price of prompt tokens is input, in USD per million",
    "completion": "the price of completion tokens is output, in USD per million",
    "input_cost_per_token": "it is input, in USD per million tokens",
    "output_cost_per_token": "it is output, in USD per million tokens",
    "api_base": "it is base_url",
    "endpoint": "the address is base_url",
    "url": "the address of an upstream is base_url, that of the store store.url",
    **dict.fromkeys(("token", "key"), "the key of an upstream is api_key, that of a client secret"),
    "timeout": "time limits are timeouts: {connect_s, head_s, idle_s, total_s}",
    **dict.fromkeys(("num_retries", "retries"), "attempts in all are max_attempts"),
    **dict.fromkeys(
        ("model_list", "litellm_settings", "general_settings", "router_settings"),
        "this is a file of LiteLLM's proxy: gateway import litellm FILE converts it",
    ),
    "providers": "providers are upstreams",
    **dict.fromkeys(("upstream", "provider"), "a model has routes: [{upstream: NAME}]"),
    "redis": "the store is store.url: redis://host:6379/0",
    **dict.fromkeys(("database", "storage", "accounting"), "the store is store.url"),
    "log_level": "the log has no levels; server.access_log is json, text or off",
}
"""Names that other programs have for a setting, and the one here."""


def explain(detail: Any, root: type[BaseModel] = Config) -> ConfigFault:
    """One pydantic error of `root` in an operator's words. Never shows the value, which may be a secret."""
    # pydantic names the arm of a union in the path ("int", "literal[...]"); the file has no such level.
    is_arm = re.compile(
        r"^(?:constrained-|literal\[|function-|lax-or-strict|int$|float$|str$|bool$|\[key\]$|ipv[46]network$)"
    )
    path = tuple(p for p in detail["loc"] if isinstance(p, int) or not is_arm.match(p))
    match detail["type"]:
        case "extra_forbidden":
            name, names = str(path[-1]), list(_names_at(path[:-1], root))
            close, habit = difflib.get_close_matches(name, names, n=1), HABITS.get(name.lower(), "")
            is_nearer = any(each not in habit for each in difflib.get_close_matches(name, close, cutoff=0.9))
            hint = f"; {habit}" if habit and not is_nearer else f"; did you mean {close[0]!r}?" if close else ""
            unseen = "" if name.isprintable() else "; its name holds a blank that is not seen, such as a no-break space"
            message = f"there is no such setting{unseen or hint}"
        case "missing":
            message = "is required"
        case "string_type":
            message = "expected text; put the value in quotes"
        case "value_error":
            message = str(detail["ctx"]["error"])
        case "dict_type" | "model_type" | "model_attributes_type":
            message = "expected settings as 'name: value' lines"
        case "tuple_type":
            first = next(iter(_names_at(path, root)), None)
            message = "expected a list, such as " + ("[one, two]" if first is None else f"[{{{first}: ...}}]")
        case "string_too_short":
            message = "expected text that is not empty"
        case "timezone_aware":
            message = "expected a time with its zone, such as 2027-01-01T00:00:00Z"
        case _:
            message = detail["msg"].replace("Input should be", "expected").replace("String should", "expected to")
            if NAME_PATTERN in message:
                message += ": small letters, digits and _ . - inside, such as alice-2"
    return ConfigFault(format_faults(path), message)


S = TypeVar("S", bound=Section)
K = TypeVar("K")
T = TypeVar("T")
Place = tuple[str | int, ...]

NAMED = ("upstreams", "models", "aliases", "teams", "people")
"""The sections whose names are part of windows, records and reports. Keys have an id with stricter rules."""


@dataclass(frozen=True, slots=True)
class ValidParts:
    """The parts that are checked against each other. Lists are by index, because some items may be missing."""

    names: Sequence[Place]
    """All names that the operator has given, also of faulty entries."""
    server: ServerSettings
    admin: AdminSettings
    upstreams: Sequence[str]
    discovering: Mapping[str, Discovery]
    """The upstreams whose listed models are served, with which of these."""
    model_defaults: ModelSettings
    connections: Mapping[str, int]
    """The limit of each sound upstream."""
    models: Mapping[str, Model]
    model_names: Sequence[str]
    """Names of all models, faulty ones included."""
    aliases: Mapping[str, str]
    rows: Sequence[tuple[WingRows, Mapping[str, Any]]]
    """The sections of APIs, each with its sound rows."""
    teams: Mapping[str, Mapping[int, Quota]]
    members: Mapping[str, Mapping[int, Quota]]
    """The quotas of the people in each team."""
    people: Mapping[str, PersonLimits]
    budgets: Mapping[str, Mapping[int, Quota]]
    """The quotas of each upstream."""
    keys: Mapping[int, FileKey]
    quotas: Mapping[int, Quota]
    new_keys: KeyDefaults
    files: FileSettings

    @classmethod
    def of(cls, config: Config) -> ValidParts:
        return cls(
            names=[(part, name) for part in NAMED for name in getattr(config, part)],
            server=config.server, admin=config.admin, upstreams=list(config.upstreams),
            discovering={
                name: upstream.discover for name, upstream in config.upstreams.items() if upstream.discover is not None
            },
            model_defaults=config.defaults.models,
            connections={name: upstream.max_connections for name, upstream in config.upstreams.items()},
            models=config.models, model_names=list(config.models),
            aliases=config.aliases, rows=[(each, getattr(config, each.name)) for each in wing_rows()],
            teams={name: dict(enumerate(team.quotas)) for name, team in config.teams.items()},
            members={name: dict(enumerate(team.member_quotas)) for name, team in config.teams.items()},
            people=config.people,
            budgets={name: dict(enumerate(upstream.quotas)) for name, upstream in config.upstreams.items()},
            keys=dict(enumerate(config.keys)), quotas=dict(enumerate(config.quotas)),
            new_keys=config.defaults.keys, files=config.files,
        )  # fmt: skip

    @classmethod
    def sound_in(cls, values: Mapping[str, Any]) -> ValidParts:
        """The valid parts of plain values, so that all faults are reported at once.

        For upstreams and teams the name is enough: a reference to a faulty entry is not a second fault.
        """
        teams = _named(values, "teams")
        settings, model = model_kinds()
        server = _sound(ServerSettings, {"server": values.get("server", {})}).get("server", ServerSettings())
        upstreams = _sound(Upstream, _named(values, "upstreams"))
        return cls(
            names=[(part, name) for part in NAMED for name in _named(values, part) if isinstance(name, str)],
            server=server,
            admin=_sound(AdminSettings, {"admin": values.get("admin", {})}).get("admin", AdminSettings()),
            upstreams=list(_named(values, "upstreams")),
            discovering={
                name: Discovery()
                for name, given in _named(values, "upstreams").items()
                if isinstance(given, dict) and given.get("discover") not in (None, False)
            },
            model_defaults=_sound(settings, _named(values, "defaults")).get("models", settings()),
            connections={name: upstream.max_connections for name, upstream in upstreams.items()},
            models=_sound(model, _named(values, "models")),
            model_names=[name for name in _named(values, "models") if isinstance(name, str)],
            aliases={alias: name for alias, name in _by_text(_named(values, "aliases")) if isinstance(name, str)},
            rows=[(each, dict(_by_text(_sound(each.kind, _named(values, each.name))))) for each in wing_rows()],
            teams={name: _sound(Quota, _listed(team, "quotas")) for name, team in teams.items()},
            members={name: _sound(Quota, _listed(team, "member_quotas")) for name, team in teams.items()},
            people=dict(_by_text(_sound(PersonLimits, _named(values, "people")))),
            budgets={
                name: _sound(Quota, _listed(upstream, "quotas"))
                for name, upstream in _named(values, "upstreams").items()
            },
            keys=_sound(FileKey, _listed(values, "keys")),
            quotas=_sound(Quota, _listed(values, "quotas")),
            new_keys=_sound(KeyDefaults, _named(values, "defaults")).get("keys", KeyDefaults()),
            files=_sound(FileSettings, {"files": values.get("files", {})}).get("files", FileSettings()),
        )


def _by_text(found: Mapping[Any, T]) -> Iterator[tuple[str, T]]:
    """Those whose name is a text, as it need not be in YAML."""
    return ((name, each) for name, each in found.items() if isinstance(name, str))


def _named(values: Any, name: str) -> dict[str, Any]:
    found = values.get(name) if isinstance(values, Mapping) else None
    return found if isinstance(found, dict) else {}


def _listed(values: Any, name: str) -> dict[int, Any]:
    found = values.get(name) if isinstance(values, Mapping) else None
    return dict(enumerate(found)) if isinstance(found, list) else {}


def _sound(kind: type[S], parts: Mapping[K, Any]) -> dict[K, S]:
    sound = {}
    for place, part in parts.items():
        try:
            sound[place] = kind.model_validate(part)
        except ValidationError:
            continue
    return sound


def quota_lists(parts: ValidParts) -> Iterator[tuple[Place, Mapping[int, Quota], tuple[str, ...]]]:
    """Every list of quotas with its path and its owner's model patterns."""
    yield ("quotas",), parts.quotas, ("*",)
    yield (
        ("defaults", "keys", "quotas"),
        dict(enumerate(parts.new_keys.quotas)),
        with_targets(parts.new_keys.models, parts.aliases),
    )
    for name, quotas in parts.teams.items():
        yield ("teams", name, "quotas"), quotas, ("*",)
    for name, quotas in parts.members.items():
        yield ("teams", name, "member_quotas"), quotas, ("*",)
    for name, person in parts.people.items():
        yield ("people", name, "quotas"), dict(enumerate(person.quotas)), ("*",)
    for name, quotas in parts.budgets.items():
        if not quotas:
            continue  # each model asks for these lists
        of_upstream = [model for model, each in parts.models.items() if name in [at.upstream for at in each.routes]]
        yield ("upstreams", name, "quotas"), quotas, tuple(of_upstream)
    for number, key in parts.keys.items():
        yield ("keys", number, "quotas"), dict(enumerate(key.quotas)), with_targets(key.models, parts.aliases)


def cross_check(parts: ValidParts) -> Iterator[ConfigFault]:
    yield from _check_names(parts)
    yield from _check_listeners(parts)
    yield from _check_shares(parts)
    yield from _check_models(parts)
    yield from _check_aliases(parts)
    yield from _check_fallbacks(parts)
    yield from _check_keys(parts)
    yield from _check_quotas(parts)
    yield from _check_files(parts)
    for section, rows in parts.rows:
        yield from section.faults(rows, parts.upstreams, parts.model_names)


def _check_files(parts: ValidParts) -> Iterator[ConfigFault]:
    if parts.files.upstream is not None and parts.files.upstream not in parts.upstreams:
        known = printable(", ".join(parts.upstreams)) or "none"
        yield ConfigFault(
            format_faults(("files", "upstream")),
            f"there is no upstream {parts.files.upstream!r}; there are: {known}",
        )


def _check_names(parts: ValidParts) -> Iterator[ConfigFault]:
    for place in parts.names:
        if BAD_SIGNS.search(str(place[-1])):
            yield ConfigFault(format_faults(place), "expected a name without control characters")
        if not place[-1]:  # which is what reports call no upstream and no team
            yield ConfigFault(format_faults(place), "expected a name that is not empty")
        if place[0] == "people" and len(str(place[-1])) > MAX_PERSON:
            yield ConfigFault(format_faults(place), f"expected a name of at most {MAX_PERSON} characters")
    for team in [name for name, quotas in parts.members.items() if quotas and "/" in name]:
        yield ConfigFault(
            format_faults(("teams", team, "member_quotas")),
            "a team with quotas of its members has no '/' in its name, which divides the two in the names of windows",
        )


def _check_listeners(parts: ValidParts) -> Iterator[ConfigFault]:
    if parts.server.port and parts.admin.address == (parts.server.host, parts.server.port):
        yield ConfigFault(
            format_faults(("admin", "listen")), "is the address for calls; give it a port of its own, or null"
        )


def _check_shares(parts: ValidParts) -> Iterator[ConfigFault]:
    """They are split over the workers, each of which needs at least one, and may not exceed the limit together."""
    workers = parts.server.workers
    limits: dict[Place, int] = {("server", "max_in_flight"): parts.server.max_in_flight}
    limits |= {("upstreams", name, "max_connections"): limit for name, limit in parts.connections.items()}
    for place, limit in limits.items():
        if limit < workers:
            yield ConfigFault(
                format_faults(place), f"{limit} is too few: each of the {workers} workers needs at least one"
            )


def _check_models(parts: ValidParts) -> Iterator[ConfigFault]:
    yield from _check_patterns(parts.models)
    yield from _check_discovery(parts)
    for name, model in parts.models.items():
        for index, route in enumerate(model.routes):
            if route.upstream not in parts.upstreams:
                known = printable(", ".join(parts.upstreams)) or "none"
                yield ConfigFault(
                    format_faults(("models", name, "routes", index, "upstream")),
                    f"there is no upstream {route.upstream!r}; there are: {known}",
                )
        if "chat" in model.endpoints and model.max_output_tokens is None and (found := _token_quota(parts, name)):
            path, what = found
            yield ConfigFault(
                format_faults(("models", name, "max_output_tokens")),
                f"is required, because {format_faults(path)} counts {what} of this model's chat calls",
            )
        least, most = model.min_output_tokens, model.max_output_tokens
        if least is not None and {"chat", "responses"}.intersection(model.endpoints) and (most is None or least > most):
            yield ConfigFault(
                format_faults(("models", name, "min_output_tokens")),
                f"{least} needs a max_output_tokens that is not smaller: it bounds how far that default is reduced",
            )
        price = model.price if model.price is not None and model.price.source is None else None
        if price is not None and price.input is None and not price.model_fields_set.intersection(BESIDE_TOKENS):
            yield ConfigFault(format_faults(("models", name, "price", "input")), "is required")
        generating = [endpoint for endpoint in model.endpoints if endpoint in WITH_TEXT]
        if price is not None and price.output is None and price.input is not None and generating:
            yield ConfigFault(
                format_faults(("models", name, "price", "output")),
                f"is required, because this model serves {generating[0]}",
            )


def _check_discovery(parts: ValidParts) -> Iterator[ConfigFault]:
    """Requires a model, because nothing could be served without one. Discovered models have only the default settings,
    so those must hold a needed `max_output_tokens`."""
    if not parts.model_names and not parts.discovering and not any(rows for _, rows in parts.rows):
        yield ConfigFault(
            "models", "is required: name at least one model, or serve those that an upstream lists with discover: true"
        )
    upstream = next(iter(parts.discovering), None)
    if upstream is None or "*" in parts.model_names or parts.model_defaults.max_output_tokens is not None:
        return
    if "chat" in parts.model_defaults.endpoints and (found := _token_quota(parts, "*")):
        path, what = found
        yield ConfigFault(
            format_faults(("defaults", "models", "max_output_tokens")),
            f"is required, because {format_faults(path)} counts {what} of chat calls, and the models that the upstream "
            f"{printable(upstream)!r} lists have no settings but the default ones",
        )


def _check_patterns(models: Mapping[str, Model]) -> Iterator[ConfigFault]:
    """Patterns that no name can match, or that cannot be served."""
    first: dict[str, str] = {}
    for name, model in models.items():
        place: Place = ("models", name)
        if is_pattern(name):
            if (other := first.setdefault(re.sub(r"\*+", "*", name), name)) != name:
                yield ConfigFault(format_faults(place), f"matches the same names as {printable(other)!r}; keep one")
            for index, route in enumerate(model.routes):
                if route.model is not None and is_pattern(route.model):
                    yield ConfigFault(
                        format_faults((*place, "routes", index, "model")),
                        "expected a name without *; leave it out to send the name that was asked for, and take a "
                        "prefix off with strip_prefix",
                    )
        if model.strip_prefix is None:
            continue
        if not name.startswith(model.strip_prefix):
            yield ConfigFault(
                format_faults((*place, "strip_prefix")),
                f"the names of {printable(name)!r} do not begin with {printable(model.strip_prefix)!r}",
            )
        elif name == model.strip_prefix:
            yield ConfigFault(format_faults((*place, "strip_prefix")), "is the whole name: nothing would be sent")
        if all(route.model is not None for route in model.routes):
            yield ConfigFault(
                format_faults((*place, "strip_prefix")),
                "has no effect, because each route has a model of its own; leave one of the two out",
            )


def _check_fallbacks(parts: ValidParts) -> Iterator[ConfigFault]:
    """A fallback is another model that there is."""
    for name, model in parts.models.items():
        for index, other in enumerate(model.fallbacks):
            place = format_faults(("models", name, "fallbacks", index))
            if other == name:
                yield ConfigFault(place, "is the model itself; name another one")
            elif other in model.fallbacks[:index]:
                yield ConfigFault(place, f"{printable(other)!r} is named twice; keep one")
            elif other in parts.aliases:
                yield ConfigFault(place, f"{printable(other)!r} is an alias; name the model")
            elif fault := _missing_model(other, parts):
                yield ConfigFault(place, fault)


def _missing_model(name: str, parts: ValidParts) -> str | None:
    """Why no model serves this name; None: one does."""
    exact = [each for each in parts.model_names if not is_pattern(each)]
    if is_pattern(name):
        return "leads to a pattern; name one model"
    if name in exact or any(compiled(each).match(name) for each in most_specific_first(parts.model_names)):
        return None
    if any(is_wanted(name, settings) for settings in parts.discovering.values()):
        return None  # an upstream may list it
    close = difflib.get_close_matches(name, exact, n=1)
    return f"there is no model {printable(name)!r}" + (f"; did you mean {printable(close[0])!r}?" if close else "")


def _check_aliases(parts: ValidParts) -> Iterator[ConfigFault]:
    """An alias leads to one model that there is, and takes no name from another."""
    for alias, name in parts.aliases.items():
        place = format_faults(("aliases", alias))
        if is_pattern(alias):
            yield ConfigFault(place, "an alias is one name, without *")
        elif alias in parts.model_names:
            yield ConfigFault(place, "is the name of a model; a call could mean either, so give the alias another name")
        if name in parts.aliases:
            yield ConfigFault(place, f"leads to {printable(name)!r}, which is an alias itself; name the model")
        elif fault := _missing_model(name, parts):
            yield ConfigFault(place, fault)


def _token_quota(parts: ValidParts, model: str) -> tuple[Place, str] | None:
    """The first quota that depends on how many tokens calls of this model use, and what it counts."""
    for path, quotas, patterns in quota_lists(parts):
        for index, quota in quotas.items():
            if quota.unit in COUNTED and is_bound(quota, patterns, model):
                return (*path, index), COUNTED[quota.unit]
    return None


WITH_TEXT = frozenset({"completions", "chat", "messages", "responses", "generate_content", "realtime"})
"""Endpoints whose answers are charged as generated text."""

COUNTED = {"tokens": "the tokens", "usd": "the cost"}
"""The units that depend on how many tokens a call uses, in words."""


def is_bound(quota: Quota, patterns: Iterable[str], model: str) -> bool:
    """Whether calls of this model, or of a name under this pattern, count in a quota whose owner may use these
    models."""
    if is_pattern(model):
        is_covered = quota.model is None or may_overlap(model, quota.model)
        return is_covered and any(may_overlap(model, pattern) for pattern in patterns)
    return quota.covers(model) and any(fnmatchcase(model, pattern) for pattern in patterns)


def check_outputs(
    path: Place, quotas: Mapping[int, Quota], patterns: Iterable[str], models: Mapping[str, Model]
) -> Iterator[ConfigFault]:
    """One list of quotas and its models: a token quota needs the default output limit of each chat model."""
    for index, quota in quotas.items():
        for name, model in models.items():
            if (
                quota.unit in COUNTED
                and "chat" in model.endpoints
                and model.max_output_tokens is None
                and is_bound(quota, patterns, name)
            ):
                yield ConfigFault(
                    format_faults((*path, index)),
                    f"counts {COUNTED[quota.unit]} of chat calls of the model {printable(name)!r}, which "
                    "has no max_output_tokens in the configuration; set it there first",
                )
                break


def _check_keys(parts: ValidParts) -> Iterator[ConfigFault]:
    ids = Counter(key.id for key in parts.keys.values())
    secrets: dict[bytes, int] = {}
    for number, key in parts.keys.items():
        if ids[key.id] > 1:
            yield ConfigFault(format_faults(("keys", number, "id")), f"{key.id!r} is the id of {ids[key.id]} keys")
        if key.id == "other":
            yield ConfigFault(
                format_faults(("keys", number, "id")),
                "'other' is reserved: metrics use it for keys without a label of their own; choose another id",
            )
        if key.team is not None and key.team not in parts.teams:
            yield ConfigFault(format_faults(("keys", number, "team")), f"there is no team {key.team!r} under teams")
        if (first := secrets.setdefault(key.digest, number)) != number:
            yield ConfigFault(
                format_faults(("keys", number)), f"has the same secret as {format_faults(('keys', first))}"
            )


def _check_quotas(parts: ValidParts) -> Iterator[ConfigFault]:
    """A window is identified by owner, unit, length and models, not by its limit: two such quotas would share it."""
    for path, quotas, _ in quota_lists(parts):
        yield from check_list(path, quotas, may_have_labels=path[0] == "quotas" or path[::2] == ("teams", "quotas"))
        if path[0] == "teams" and "/" in str(path[1]) and any(quota.label for quota in quotas.values()):
            yield ConfigFault(format_faults(path), "a team with quotas of labels has no '/' in its name")


def check_list(path: Place, quotas: Mapping[int, Quota], *, may_have_labels: bool = False) -> Iterator[ConfigFault]:
    """One list of quotas, by index."""
    seen: dict[tuple[object, ...], int] = {}
    for index, quota in quotas.items():
        if quota.label is not None and not may_have_labels:
            yield ConfigFault(
                format_faults((*path, index, "label")), "only quotas of the gateway and of teams can have a label"
            )
        if (first := seen.setdefault((quota.unit, quota.per, quota.model, quota.label), index)) != index:
            yield ConfigFault(
                format_faults((*path, index)), f"counts the same as {format_faults((*path, first))}; keep one"
            )
