"""Changes of keys, teams, quotas and people at run time: one implementation for the admin API and the command line.

Each change reads a document, makes the next one by the rules (`quota/issued.py`), and writes it if it is still the one
that was read. It adds one entry to the audit log: author, object, before and after. Objects of the configuration file
are read-only, except that their keys can be revoked, and their quotas topped up and reset, by an overlay.
"""

from __future__ import annotations

from .audit import AuditLog
from .documents import Page, Shown, no_key, no_team
from .manage_keys import CreatedKey, KeyManager
from .manage_people import PeopleManager
from .manage_quotas import QuotaManager
from .manage_teams import TeamManager

__all__ = ["CreatedKey", "Page", "Registry", "Shown", "no_key", "no_team"]


class Registry(KeyManager, TeamManager, QuotaManager, PeopleManager, AuditLog):
    """Every method raises `StoreUnavailable` (a change may then have been made or not), and children of
    `GatewayError` with
    texts for the caller, in both places: `InvalidRequest` (`param` names the field as in the file:
    `quotas[0].per`), `NotFound`, `Conflict` (409: `managed_by_file`, `already_exists`, `revoked`, `team_in_use`,
    `changed_meanwhile`).

    `actor` is the author for the audit log: `token ci from 10.0.0.7`, `gateway keys, user bob`.
    """
