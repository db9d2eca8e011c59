"""The file that is converted, with the places that were used, and the notes about the others."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from gateway.config.faults import ConfigError, ConfigFault, format_faults
from gateway.config.include import Assembled, Place
from gateway.config.references import load

VARIABLE = re.compile(r"os\.environ/(\w+)")

WALKED = frozenset({("model_list",), ("credential_list",), ("general_settings", "pass_through_endpoints")})
"""Lists whose entries are looked at one by one."""
DEEP = frozenset({
    "litellm_jwtauth", "default_key_generate_params", "default_internal_user_params", "provider_budget_config",
})  # fmt: skip
"""Sections whose settings are noted one by one, two levels below the top."""

_CIRCUIT = "each upstream and model has a circuit breaker with fixed rules"
_OTHER_TRACES = "metrics for Prometheus are always there; for traces see tracing.endpoint"
_PEOPLE = "models are those of keys and teams, roles those of oidc; see docs/people.md"
_CACHE = "answers are not cached"
_NEITHER = "is deliberately not part of the gateway; keep LiteLLM as an upstream for it"

WHY: Mapping[str, str] = {
    "database_url": "keys and spend are in the store of this gateway (store.url); see docs/from-litellm.md#keys",
    "store_model_in_db": "models are in the file; export those of LiteLLM's database into model_list first",
    "routing_strategy": "routes go by priority, then weight, then the fewest calls under way",
    "allowed_fails": _CIRCUIT,
    "cooldown_time": _CIRCUIT,
    "retry_policy": "attempts in all are models.NAME.max_attempts; what is repeated is decided by fixed rules",
    "max_retries": "attempts in all are models.NAME.max_attempts",
    "success_callback": _OTHER_TRACES,
    "failure_callback": _OTHER_TRACES,
    "callbacks": _OTHER_TRACES,
    "cache": _CACHE,
    "cache_params": _CACHE,
    "drop_params": "nothing is dropped: a call goes where it can be served (upstreams.NAME.capabilities)",
    "alerting": "see alerts.webhook",
    "alerting_args": "see alerts.webhook",
    "alerting_threshold": "see the alert rules on the metrics",
    "enable_pre_call_checks": "every parameter is checked before money is spent",
    "environment_variables": "set them in the environment of the gateway",
    "default_fallbacks": "name fallbacks for each model",
    "content_policy_fallbacks": "a refusal of a provider is passed on, and is no cause for another model",
    "stream_timeout": "see upstreams.NAME.timeouts.idle_s",
    "max_parallel_requests": "see upstreams.NAME.limits.parallel, and max_parallel of a key",
    "api_version": "the v1 API that the gateway speaks needs none",
    "background_health_checks": "see upstreams.NAME.probe_s",
    "health_check_interval": "see upstreams.NAME.probe_s",
    "allowed_ips": "see keys[].ips",
    "provider_budget_config": "see upstreams.NAME.quotas, which are per day, week or month",
    "extra_body": "write its members into parameters.models",
    "default_internal_user_params": _PEOPLE,
    "upperbound_key_generate_params": "members make keys with defaults.keys; see teams.NAME.members for their bounds",
    "default_team_params": "write each team with its quotas into teams",
    "default_team_settings": "write each team with its quotas into teams",
    "guardrails": _NEITHER,
    "mcp_servers": _NEITHER,
    "vector_store_registry": _NEITHER,
    "set_verbose": "lines of the log never have prompts; there is no verbose mode",
    "json_logs": "lines of the log are JSON always: server.access_log",
    "turn_off_message_logging": "prompts and answers are never logged",
    "request_timeout": "see upstreams.NAME.timeouts.total_s",
    "custom_auth": "keys, or tokens of an identity provider (jwt), are the ways in",
    "aws_session_name": "botocore names its sessions itself",
    "aws_sts_endpoint": "botocore reads AWS_ENDPOINT_URL_STS",
}
"""Remedies for settings of LiteLLM that are not converted, by the last name of their place."""

NO_COUNTERPART = "has no counterpart"


@dataclass(slots=True)
class Converted:
    """The result of converting a file."""

    values: dict[str, Any] = field(default_factory=dict)
    notes: list[ConfigFault] = field(default_factory=list)
    """Settings that could not be converted, or mean something else here, with their lines; in the order of the file."""
    variables: dict[str, None] = field(default_factory=dict)
    """The environment variables that the result names, in order."""


class Given:
    """The values of the file. A value that is taken from it counts as converted."""

    def __init__(self, text: str, file: str, read_file: Any) -> None:
        """Raises `ConfigError` if `text` cannot be loaded."""
        self.whole = Assembled(texts={file: text})
        self.done = Converted({"upstreams": {}, "models": {}})
        self.values = load(text)
        self._include(file, read_file)
        self._named = {name for each in self.whole.texts.values() for name in VARIABLE.findall(each)}
        self._invented: dict[str, str] = {}
        """Variables for secrets of the file, by the secret."""
        self._used: set[Place] = set()

    def _include(self, file: str, read_file: Any) -> None:
        """Add the files of `include`: lists are put behind one another, other settings replace those before (LiteLLM,
        `ProxyConfig._process_includes`)."""
        names = self.values.pop("include", None)
        for index, name in enumerate(names if isinstance(names, list) else []):
            path = str(PurePath(file).parent / str(name))
            try:
                text = read_file(path)
                found = load(text)
            except (OSError, UnicodeDecodeError, ConfigError):
                self.note(("include", index), f"{name} cannot be read: put it beside the file, and convert again")
                continue
            self.whole.texts[path] = text
            for section, value in found.items():
                before = self.values.get(section)
                if isinstance(value, list) and isinstance(before, list | None):
                    number = len(before or [])
                    for offset in range(len(value)):
                        self.whole.origins[section, number + offset] = (path, (section, offset))
                    self.values[section] = [*(before or []), *value]
                else:
                    self.whole.origins[section,] = (path, (section,))
                    self.values[section] = value

    def note(self, place: Place, why: str) -> None:
        """Add a note, with its file and line."""
        found = self.whole.locate(ConfigFault(format_faults(place), why))
        if not found.line and found.file in self.whole.texts:
            found = replace(found, line=self.whole.line_of(found.file, place))
        self.done.notes.append(found)

    def skip(self, place: Place, why: str) -> None:
        """Add a note about a section that is not converted; what is in it needs no note of its own."""
        self.note(place, why)
        self._used.add(place)

    def take(self, *place: str | int) -> Any:
        """A value, which counts as converted."""
        value: Any = self.values
        for part in place:
            is_list = isinstance(value, list) and isinstance(part, int) and part < len(value)
            if not is_list and not (isinstance(value, dict) and part in value):
                return None
            value = value[part]
        self._used.add(place)
        return value

    def reference(self, place: Place, value: Any, variable: str) -> str:
        """`${NAME}` for a value that is a secret or may be one."""
        if isinstance(value, str) and (found := VARIABLE.fullmatch(value.strip())):
            variable = found[1]
        else:
            variable = self._invented.setdefault(str(value), self._unused(variable))
            self.note(place, f"a secret in the file is not copied: put it into the environment variable {variable}")
        return self.variable(variable)

    def variable(self, name: str) -> str:
        """`${NAME}` for a variable that the result needs."""
        self.done.variables.setdefault(name)
        return f"${{{name}}}"

    def plain(self, value: Any) -> Any:
        """A value that is no secret; it may come from the environment."""
        if isinstance(value, str) and (found := VARIABLE.fullmatch(value.strip())):
            return self.variable(found[1])
        return value

    def note_the_rest(self) -> None:
        """Add a note for each setting that was not taken."""
        for place, _ in _leaves(self.values, ()):
            if not any(place[:length] in self._used for length in range(1, len(place) + 1)):
                why = next((WHY[str(part)] for part in reversed(place) if str(part) in WHY), NO_COUNTERPART)
                self.note(place, why)
        order = list(self.whole.texts)
        self.done.notes.sort(key=lambda note: (order.index(note.file) if note.file in order else 0, note.line))

    def _unused(self, variable: str) -> str:
        """The name, with a number behind it where the file names such a variable or another secret has it."""
        number, found = 2, variable
        while found in self._named or found in self._invented.values():
            found, number = f"{variable}_{number}", number + 1
        return found


def section_of(values: Any, *names: str) -> Mapping[str, Any]:
    """A section, or an empty one."""
    for name in names:
        values = values.get(name) if isinstance(values, dict) else None
    return values if isinstance(values, dict) else {}


def _leaves(value: Any, place: Place) -> Iterator[tuple[Place, Any]]:
    """The settings of the sections, and of the entries of the lists that are walked, two levels deeper."""
    depth = 4 if place[:1] in WALKED or place[:2] in WALKED else 3 if DEEP.intersection(map(str, place)) else 2
    if isinstance(value, dict) and value and len(place) < depth:
        for name, item in value.items():
            yield from _leaves(item, (*place, str(name)))
    elif isinstance(value, list) and place in WALKED:
        for index, item in enumerate(value):
            yield from _leaves(item, (*place, index))
    elif value not in (None, {}, []):
        yield place, value
