"""What is done to keys, teams and quotas while the gateway runs: one implementation under the admin API and the CLI.

Everything here reads a document, makes the next one by the rules (quota/issued), and writes it where it is still the
one that was read; each change leaves one entry in the audit log with who, what, before and after. What the file manages
is only read: but its keys can be revoked, and its quotas topped up and reset, which stands in an overlay.
"""

from __future__ import annotations

from .audit import AuditLog
from .documents import Page, Shown
from .manage_keys import CreatedKey, KeyManager
from .manage_quotas import QuotaManager
from .manage_teams import TeamManager

__all__ = ["CreatedKey", "Page", "Registry", "Shown"]


class Registry(KeyManager, TeamManager, QuotaManager, AuditLog):
    """Every method raises `StoreUnavailable` (a change may then have been made or not), and children of
    `GatewayError` whose
    texts are for whoever asked, in both places: `InvalidRequest` (`param` names the field as in the file:
    `quotas[0].per`), `NotFound`, `Conflict` (409: `managed_by_file`, `already_exists`, `revoked`, `team_in_use`,
    `changed_meanwhile`).

    `actor` is who did it, for the audit log: `admin API from 10.0.0.7`, `gateway keys, user bob`.
    """
