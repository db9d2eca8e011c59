"""Gives steps to a key, team or person while the gateway runs, and shows those that count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.config import ConfigError
from gateway.config.sections import folded_name
from gateway.errors import Conflict, InvalidRequest
from gateway.keys.documents import AuditEvent, Shown, in_file, invalid
from gateway.keys.registry import Registry, no_key
from gateway.quota.issued import Overlay
from gateway.quota.scopes import PERSON

from .policy import steps_of
from .settings import SECTION_NAME, CheaperSettings, Steps, given_steps, read_steps, shown_steps

KINDS = ("key", "team", PERSON)


class StepManager(Registry):
    """Raises as `Registry`. A scope is `key:ID`, `team:NAME` or `person:NAME`."""

    async def show_steps(self, scope: str) -> Shown:
        """The steps that count. `managed_by` is `file` or `store` where they are its own, else null."""
        scope, lists, name = await self._found(scope)
        _, overlay = await self._overlay(scope)
        return self._show_one(scope, lists, name, overlay)

    async def set_steps(self, scope: str, values: Sequence[Any] | None, actor: str) -> Shown:
        """Give steps of its own, none among them; null: those of its role or of all others again."""
        scope, lists, name = await self._found(scope)
        if name in lists:
            raise in_file(scope.partition(":")[0], name)
        if values is not None and not self._settings.at_run_time:
            raise Conflict(
                "Steps that are given at run time do not count here. Set when_above.at_run_time to true in the "
                "configuration file.", code="managed_by_file",
            )  # fmt: skip
        try:
            steps = None if values is None else shown_steps(given_steps(values, self._config()))
        except ConfigError as error:
            raise invalid(error) from None
        text, overlay = await self._overlay(scope)
        given = overlay._replace(more={**overlay.more, SECTION_NAME: steps})
        doing = AuditEvent(actor, "update", {SECTION_NAME: overlay.more.get(SECTION_NAME)}, {SECTION_NAME: steps})
        await self._write("overlay", scope, text, given.encode(), doing)
        return self._show_one(scope, lists, name, given)

    @property
    def _settings(self) -> CheaperSettings:
        return self._config().section(CheaperSettings)

    async def _found(self, scope: str) -> tuple[str, Mapping[str, Steps], str]:
        """The scope, the lists of the file for its kind, and its name there. Raises `NotFound`."""
        kind, _, name = scope.partition(":")
        settings = self._settings
        if kind == "key":
            if await self.key_facts(name) is None:
                raise no_key(name)
            return scope, settings.keys, name
        if kind == "team":
            await self.show_team(name)
            return scope, settings.teams, name
        if kind == PERSON:
            await self.find_person(name)
            name = folded_name(name)
            return f"{PERSON}:{name}", settings.people, name
        raise InvalidRequest(f"Expected a scope such as {', '.join(f'{each}:NAME' for each in KINDS)}.", param="scope")

    def _show_one(self, scope: str, lists: Mapping[str, Steps], name: str, overlay: Overlay) -> Shown:
        stored = overlay.more.get(SECTION_NAME)
        read = read_steps(stored)
        steps = steps_of(self._settings, lists, name, overlay._replace(more={SECTION_NAME: read}))
        is_given = read is not None and self._settings.at_run_time
        return {
            "object": SECTION_NAME,
            "scope": scope,
            "steps": shown_steps(steps),
            "managed_by": "file" if name in lists else "store" if is_given else None,
        }
