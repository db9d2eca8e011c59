"""Settings: text and environment in, a frozen `Config` or every fault at once out.

This package only parses. `resolve` turns YAML and its `${...}` references into plain values, `build` checks them; the
two are separate because the supervisor resolves once and passes the plain values to its workers, which build the same
`Config` without looking at the file or the environment again.

Unknown names are faults: a misspelled limit must not become "no limit".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

from pydantic import ValidationError

from .checks import ValidParts, cross_check, explain
from .faults import ConfigError, ConfigFault, format_faults, printable
from .issued import read_key, read_person, read_quota, read_team, shown_key, shown_person, shown_quotas, shown_team
from .model_names import is_pattern
from .proxies import Proxy, apply_environment
from .redis_url import RedisURL
from .references import References, load, read_text
from .sections import (
    NUSD,
    AdminSettings,
    Capabilities,
    Config,
    FileKey,
    KeySettings,
    Limits,
    MemberKeys,
    Model,
    ModelSettings,
    ModelTable,
    NamedModel,
    PersonLimits,
    Price,
    Priority,
    Quota,
    RateLimits,
    RecordSettings,
    Route,
    Section,
    ServerSettings,
    Sticky,
    StoreSettings,
    Team,
    Timeouts,
    TracingSettings,
    UploadSettings,
    Upstream,
    UpstreamLimits,
    is_expired,
    is_plain_name,
)
from .wings import whole_file, wing_sections, with_key_defaults, with_model_defaults


class Resolved(NamedTuple):
    """Holds the plain values of a file, in which each `${...}` is replaced."""

    values: dict[str, Any]
    referenced: frozenset[tuple[str | int, ...]]
    """Places that had a `${...}`: their values may be secrets."""


def resolve(text: str, env: Mapping[str, str], read_file: Callable[[str], str] = read_text) -> Resolved:
    """Turn the file's text into plain values, each `${...}` replaced, and the environment's proxies filled in.

    Sections whose names begin with `x-` are left out: they hold YAML anchors.

    Raises `ConfigError` with every unresolved reference and unusable proxy, or with the place of invalid YAML.
    """
    return resolve_values(load(text), env, read_file)


def resolve_values(
    values: Mapping[Any, Any],
    env: Mapping[str, str],
    read_file: Callable[[str], str] = read_text,
    *,
    reads_secrets: bool = True,
) -> Resolved:
    """The same for the YAML's own values. Without `reads_secrets` other texts are in the place of secrets."""
    references = References(env, read_file, reads_secrets=reads_secrets)
    settings = {name: value for name, value in values.items() if not str(name).startswith("x-")}
    resolved = references.replace_in(settings, ())
    addresses = [part for each in wing_sections() for part in each.addressed(resolved)]
    faults = [*references.faults, *apply_environment(resolved, env, addresses)]
    if faults:
        # A missing reference leaves an empty string, whose own fault would only repeat this one.
        known = {fault.path for fault in faults}
        try:
            build(resolved)
        except ConfigError as error:
            faults += [fault for fault in error.faults if fault.path not in known]
        raise ConfigError(faults)
    return Resolved(cast("dict[str, Any]", resolved), frozenset(references.places))


def build(values: Mapping[str, Any]) -> Config:
    """Check plain values. Raises `ConfigError` with every fault."""
    values = with_model_defaults(values)
    file = whole_file()
    try:
        config = file.model_validate(values)
    except ValidationError as error:
        details = error.errors(include_url=False)
        # pydantic sees a list without valid items as empty; the faults of its items are already reported.
        refused = {tuple(detail["loc"][:-n]) for detail in details for n in range(1, len(detail["loc"]))}
        found = dict.fromkeys(
            explain(detail, file) for detail in details if detail["type"] != "too_short" or detail["loc"] not in refused
        )
        paths = {fault.path for fault in found}
        between = [fault for fault in cross_check(ValidParts.sound_in(values)) if fault.path not in paths]
        raise ConfigError([*found, *between]) from None
    if faults := [*cross_check(ValidParts.of(config))] or [x for wing in wing_sections() for x in wing.faults(config)]:
        raise ConfigError(faults)
    return config
