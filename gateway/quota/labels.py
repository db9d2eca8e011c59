"""Quotas of a label: each value of it has windows of its own, of the whole gateway or of one team.

The value of a call is that of its key's label, else that of its tag. Labels of keys are chosen by operators and leads,
tags by clients. So the values of tags are bounded: the first `MAX_VALUES` of a month are noted in the store, before the
call that brings one draws on its windows, and all further ones share the windows of `other`. The noted values only
grow, so all workers and gateways draw on the same windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gateway.config import Quota, Team
from gateway.records import OTHER, TAG_SEPARATOR, Call, Key

from .issued import Overlay, SeenValues
from .scopes import label_scope, value_scope

MAX_VALUES = 1000
"""Values of one label with windows of their own in a month, of those that tags bring."""

NOT_SEEN = SeenValues()

Labelled = Mapping[str, Sequence[Quota]]
"""The quotas of each label, by its name."""


class LabelTable:
    """The quotas of labels of the gateway and of teams. `overlays` have the noted values, by `label_scope`."""

    def __init__(self, quotas: Sequence[Quota], teams: Mapping[str, Team], overlays: Mapping[str, Overlay]) -> None:
        self._overlays = overlays
        of_teams: Mapping[str | None, Labelled] = {name: _labelled(team.quotas) for name, team in teams.items()}
        self.owners = {name: each for name, each in {None: _labelled(quotas), **of_teams}.items() if each}
        """The quotas of labels by team; None: of the gateway."""

    def of_key(self, key: Key) -> Iterator[tuple[str, Sequence[Quota]]]:
        """The scopes of a key's own values, with their quotas."""
        for team, name, quotas in self._binding(key):
            for label, value in key.labels:
                if label == name:
                    yield value_scope(label_scope(team, name), value), quotas

    def of_tags(self, call: Call, month: str) -> tuple[str, ...]:
        """The scopes of the values that the tags of a call add."""
        return tuple([
            value_scope(scope, value if value in self._seen(scope, month).values else OTHER)
            for scope, value in self._tagged(call)
        ])  # fmt: skip

    def quotas_of(self, scope: str, key: Key) -> Sequence[Quota]:
        """The quotas of a value's scope that bind the key."""
        found = [quotas for team, name, quotas in self._binding(key) if scope.startswith(f"{label_scope(team, name)}=")]
        return found[0] if found else ()

    def unknown(self, call: Call, month: str) -> list[tuple[str, str]]:
        """The values of the call's tags that have to be noted first, each with the scope of its label."""
        return [
            (scope, value)
            for scope, value in self._tagged(call)
            if with_value(self._seen(scope, month), value, month) is not None
        ]

    def values(self, month: str) -> Iterator[tuple[str | None, str, Sequence[Quota]]]:
        """Each noted value: its team, its scope and its quotas."""
        for team, labelled in self.owners.items():
            for name, quotas in labelled.items():
                scope = label_scope(team, name)
                seen = self._seen(scope, month).values
                for value in sorted(seen | {OTHER} if len(seen) >= MAX_VALUES else seen):
                    yield team, value_scope(scope, value), quotas

    def _binding(self, key: Key) -> Iterator[tuple[str | None, str, Sequence[Quota]]]:
        for team in dict.fromkeys((key.team, None)):
            for name, quotas in self.owners.get(team, {}).items():
                yield team, name, quotas

    def _tagged(self, call: Call) -> Iterator[tuple[str, str]]:
        own = {name for name, _ in call.key.labels}
        tags = dict([tag.split("=", 1) for tag in call.tags.split(TAG_SEPARATOR)]) if call.tags else {}
        for team, name, _ in self._binding(call.key):
            if name not in own and name in tags:
                yield label_scope(team, name), tags[name]

    def _seen(self, scope: str, month: str) -> SeenValues:
        overlay = self._overlays.get(scope)
        seen = overlay.seen if overlay is not None and overlay.seen is not None else NOT_SEEN
        return seen if seen.month >= month else NOT_SEEN


def with_value(seen: SeenValues, value: str, month: str) -> SeenValues | None:
    """The values with another one; None where it is one of them, or has no place in this month."""
    if value == OTHER:
        return None
    if seen.month < month:
        return SeenValues(month, frozenset({value}))
    if value in seen.values or len(seen.values) >= MAX_VALUES:
        return None
    return seen._replace(values=seen.values | {value})


def _labelled(quotas: Sequence[Quota]) -> Labelled:
    found: dict[str, list[Quota]] = {}
    for quota in quotas:
        if quota.label is not None:
            found.setdefault(quota.label, []).append(quota)
    return found
