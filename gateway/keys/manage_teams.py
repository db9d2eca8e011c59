"""Teams: made, given other quotas, taken away."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from gateway.config import ConfigError, Team, read_team, shown_team
from gateway.config.sections import NAME_PATTERN
from gateway.errors import Conflict, InvalidRequest
from gateway.quota.issued import IssuedTeam, show_team, show_top_ups
from gateway.quota.windows import LimitTable
from gateway.records import Key, Window

from .documents import AuditEvent, Documents, Page, Shown, exists, in_file, invalid


class TeamManager(Documents):
    """Creates, changes, pauses and deletes teams."""

    async def list_teams(
        self, after: str = "", limit: int = 100, is_meant: Callable[[str], bool] = lambda _: True
    ) -> Page:
        """Teams of file and store by name, of those that are meant."""
        of_file = self._config().teams
        rows = [show_team(name, team) for name, team in of_file.items() if name > after and is_meant(name)]
        async for page in self._pages("team", after):
            for name, text in page:
                if name not in of_file and is_meant(name):
                    issued = IssuedTeam.decode(text)
                    rows.append(show_team(name, issued.settings, issued))
        return Page.of(sorted(rows, key=lambda row: str(row["name"])), limit, "name")

    async def show_team(self, name: str) -> Shown:
        """One team: `name`, `quotas`, `members`, `managed_by`, `created_at`, `updated_at`, `top_ups`."""
        if (of_file := self._config().teams.get(name)) is not None:
            shown = show_team(name, of_file)
        else:
            _, issued = await self._issued_team(name)
            shown = show_team(name, issued.settings, issued)
        _, overlay = await self._overlay(f"team:{name}")
        return shown | {"top_ups": show_top_ups(overlay)}

    async def create_team(self, body: Mapping[str, Any], actor: str) -> Shown:
        """Make a team: `{"name": ..., "quotas": [...]}`."""
        settings = {field: value for field, value in body.items() if field != "name"}
        name = body.get("name")
        if not isinstance(name, str) or not re.fullmatch(NAME_PATTERN, name):
            raise InvalidRequest(
                "Expected a name of at most 63 small letters, digits, '_', '.' and '-', a letter or digit first.",
                param="name",
            )
        team = self._read_team(settings)
        if name in self._config().teams:
            raise exists("team", name)
        now = self._clock()
        made = IssuedTeam(team, created_at=now, updated_at=now)
        doing = AuditEvent(actor, "create", after=shown_team(team))
        # A team of this name that was deleted may have left windows and top-ups.
        (known,) = await self._store.read("team", [name])
        text, _ = await self._overlay(f"team:{name}")
        if known is None and text is not None:
            await self._write("overlay", f"team:{name}", text, None, doing)
        await self._write("team", name, None, made.encode(), doing, resets=self._own_windows(name, team))
        return await self.show_team(name)

    async def update_team(self, name: str, changes: Mapping[str, Any], actor: str) -> Shown:
        """Replace its quotas."""
        text, team = await self._changeable_team(name)
        if changes.get("name", name) != name:
            raise InvalidRequest("The name of a team stays. Create another team.", param="name")
        before = shown_team(team.settings)
        body = {field: value for field, value in {**before, **changes}.items() if field != "name" and value is not None}
        settings = self._read_team(body)
        changed = IssuedTeam(settings, team.created_at, self._clock())
        await self._write(
            "team", name, text, changed.encode(), AuditEvent(actor, "update", before, shown_team(settings))
        )
        return await self.show_team(name)

    async def delete_team(self, name: str, actor: str) -> None:
        """Take a team away; 409 `team_in_use` while keys belong to it."""
        text, team = await self._changeable_team(name)
        members = [key.id for key in self._config().keys if key.team == name]
        members += [
            key.settings.id async for key in self._issued_keys() if key.settings.team == name and key.revoked_at is None
        ]
        if members:
            some = ", ".join(members[:5]) + (", ..." if len(members) > 5 else "")
            raise Conflict(
                f"{len(members)} keys belong to the team '{name}' ({some}). Move or revoke them first.",
                code="team_in_use",
            )
        doing = AuditEvent(actor, "delete", before=shown_team(team.settings))
        await self._write("team", name, text, None, doing, resets=self._own_windows(name, team.settings))

    def _own_windows(self, name: str, team: Team) -> list[Window]:
        """The windows of this team alone, at present."""
        now, limits = self._clock(), LimitTable((), {name: team}, {}).of(Key("", team=name))
        return [limit.window(now) for limit in limits if limit.scope == f"team:{name}"]

    async def _changeable_team(self, name: str) -> tuple[str, IssuedTeam]:
        if name in self._config().teams:
            raise in_file("team", name)
        return await self._issued_team(name)

    def _read_team(self, body: Mapping[str, Any]) -> Team:
        try:
            return read_team(body, self._config())
        except ConfigError as error:
            raise invalid(error) from None
