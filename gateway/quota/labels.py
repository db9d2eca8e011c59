"""Quotas of a label: each value of it has windows of its own, of the whole gateway or of one team.

The value of a call is that of its key's label, else that of its tag. Labels of keys are chosen by operators and leads,
tags by clients. So the windows of tags are apart, and no client spends what keys with a label have. They are bounded:
the first `MAX_VALUES` of a month, `MAX_VALUES_OF_A_KEY` of each key, are noted in the store before the call that brings
one draws on its windows; further ones share the windows of the tag without a value. The noted values only grow, so all
workers and gateways draw on the same windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gateway.config import Quota, Team
from gateway.records import TAG_SEPARATOR, Call, Key

from .issued import Overlay, SeenValues
from .scopes import label_scope, tag_scope, value_scope

MAX_VALUES = 1000
"""Values of one label with windows of their own in a month, of those that tags bring."""
MAX_VALUES_OF_A_KEY = 20
"""Those that one key brings first."""

NOT_SEEN = SeenValues()

Labelled = Mapping[str, Sequence[Quota]]
"""The quotas of each label, by its name."""


class LabelTable:
    """The quotas of labels of the gateway and of teams. `overlays` have the noted values, by `tag_scope`."""

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
            value_scope(scope, value) if value in self._seen(scope, month).values else scope
            for scope, value in self._tagged(call)
        ])  # fmt: skip

    def of_tags_of(self, key: Key, tags: str, month: str) -> Iterator[str]:
        """The scopes of the values of tags that count for a key: of those that it brought first in this month and of
        those in `tags`, and the shared one where there is no place for a further value."""
        own, asked = dict(key.labels), _tags_of(tags)
        for scope, name in [(tag_scope(team, name), name) for team, name, _ in self._binding(key) if name not in own]:
            seen = self._seen(scope, month)
            brought = {value for value, by in seen.values.items() if by == key.id}
            for value in sorted(brought | ({asked[name]} if name in asked else set())):
                if value in seen.values or with_value(seen, value, key.id, month) is not None:
                    yield value_scope(scope, value)
            if with_value(seen, "", key.id, month) is None:  # no value is empty
                yield scope

    def quotas_of(self, scope: str, key: Key) -> Sequence[Quota]:
        """The quotas of a value's scope that bind the key."""
        for team, name, quotas in self._binding(key):
            tag = tag_scope(team, name)
            if scope == tag or scope.startswith((f"{tag}=", f"{label_scope(team, name)}=")):
                return quotas
        return ()

    def unknown(self, call: Call, month: str) -> list[tuple[str, str]]:
        """The values of the call's tags that have to be noted first, each with the scope of its label."""
        key, tagged = call.key.id, self._tagged(call)
        return [each for each in tagged if with_value(self._seen(each[0], month), each[1], key, month) is not None]

    def values(self, month: str) -> Iterator[tuple[str | None, str, Sequence[Quota]]]:
        """All values together that are not noted, and each noted one: the team, the scope and the quotas."""
        for team, labelled in self.owners.items():
            for name, quotas in labelled.items():
                scope = tag_scope(team, name)
                yield team, scope, quotas
                for value in sorted(self._seen(scope, month).values):
                    yield team, value_scope(scope, value), quotas

    def _binding(self, key: Key) -> Iterator[tuple[str | None, str, Sequence[Quota]]]:
        for team in dict.fromkeys((key.team, None)):
            for name, quotas in self.owners.get(team, {}).items():
                yield team, name, quotas

    def _tagged(self, call: Call) -> Iterator[tuple[str, str]]:
        own, tags = {name for name, _ in call.key.labels}, _tags_of(call.tags)
        for team, name, _ in self._binding(call.key):
            if name not in own and name in tags:
                yield tag_scope(team, name), tags[name]

    def _seen(self, scope: str, month: str) -> SeenValues:
        overlay = self._overlays.get(scope)
        seen = overlay.seen if overlay is not None and overlay.seen is not None else NOT_SEEN
        return seen if seen.month >= month else NOT_SEEN


def _tags_of(tags: str) -> dict[str, str]:
    return dict([tag.split("=", 1) for tag in tags.split(TAG_SEPARATOR)]) if tags else {}


def with_value(seen: SeenValues, value: str, key: str, month: str) -> SeenValues | None:
    """The values with another one that this key brings; None where it is one of them, or has no place in this month."""
    if seen.month < month:
        return SeenValues(month, {value: key})
    if value in seen.values or len(seen.values) >= MAX_VALUES:
        return None
    if sum([each == key for each in seen.values.values()]) >= MAX_VALUES_OF_A_KEY:
        return None
    return seen._replace(values={**seen.values, value: key})


def _labelled(quotas: Sequence[Quota]) -> Labelled:
    found: dict[str, list[Quota]] = {}
    for quota in quotas:
        if quota.label is not None:
            found.setdefault(quota.label, []).append(quota)
    return found
