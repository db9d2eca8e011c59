"""Which document results when a change that the store has lost is made again, and which changes come first.

A store that comes back older or empty may have been changed by others meanwhile. So a change is merged into the
document that the store has now:

1. The document as it was before the change, or none: the change as it was made.
2. A revocation is never undone: it holds with any other content of the document. Of two moments at which sessions of a
   person were ended, the later one holds.
3. A key that was deleted is deleted in any version; a later key of the same id stays.
4. A key or team: the version that was updated last.
5. A pause or its end, of a key of the file or a person, and facts of wings: as the change has it.
6. A top-up is added to what the store has now.
7. A reset takes from a window what was used when it was made: calls that came after it have been repeated by then.
"""

from __future__ import annotations

from gateway.quota.issued import IssuedKey, IssuedTeam, Overlay, TopUp
from gateway.store import StoreChange


def again(change: StoreChange, present: str | None) -> StoreChange:
    """`change` as it is made where the store has `present`. Raises `ValueError` for a document of another version."""
    after, removed = merged(change, present), change.secrets_removed
    if change.kind == "key" and present is not None and after is None:
        removed = tuple({*removed, *(secret.sha256 for secret in IssuedKey.decode(present).secrets)})
    return change._replace(before=present, after=after, secrets_removed=removed, is_again=True)


def audit_alone(change: StoreChange, present: str | None) -> StoreChange:
    """`change` of a key that was deleted later: logged, and nothing else."""
    return StoreChange(
        change.kind, change.name, present, present, change.audit, journal=change.journal, number=change.number
    )


def merged(change: StoreChange, present: str | None) -> str | None:
    """The document after `change` was made again where the store has `present`. Raises `ValueError` for a document of
    another version."""
    if present == change.before:
        return change.after
    if change.kind == "overlay":
        return _merged_overlay(change, present)
    if present is None:
        return change.after
    if change.kind == "team":
        made = change.after or change.before
        is_newer = made is not None and IssuedTeam.decode(made).updated_at >= IssuedTeam.decode(present).updated_at
        return change.after if is_newer else present
    if change.after is None:
        is_another = change.before is not None and (
            IssuedKey.decode(present).created_at > IssuedKey.decode(change.before).created_at
        )
        return present if is_another else None
    made_key, present_key = IssuedKey.decode(change.after), IssuedKey.decode(present)
    latest = made_key if made_key.updated_at >= present_key.updated_at else present_key
    return latest._replace(revoked_at=made_key.revoked_at or present_key.revoked_at).encode()


def _merged_overlay(change: StoreChange, present: str | None) -> str | None:
    before, after, now = (
        Overlay() if text is None else Overlay.decode(text) for text in (change.before, change.after, present)
    )
    paused = after.paused if after.paused != before.paused else now.paused
    revoked_at = max([each for each in (after.revoked_at, now.revoked_at) if each is not None], default=None)
    quotas = after.quotas if after.quotas != before.quotas else now.quotas
    role = after.role if after.role != before.role else now.role
    changed = {name: value for name, value in after.more.items() if value != before.more.get(name)}
    more = {**now.more, **changed}
    result = now._replace(revoked_at=revoked_at, paused=paused, quotas=quotas, role=role, more=more)
    had = {top_up[:4]: top_up.amount for top_up in before.top_ups}
    for top_up in after.top_ups:
        if added := top_up.amount - had.get(top_up[:4], 0):
            result = result.topped_up(TopUp(*top_up[:4], added))
    return None if result == Overlay() and present is None else result.encode()


def ends_a_key(change: StoreChange) -> bool:
    """Whether a change revokes or deletes a key. Such changes are made again first."""
    if is_deletion(change):
        return True
    return _is_revoked(change, change.after) and not _is_revoked(change, change.before)


def is_deletion(change: StoreChange) -> bool:
    """Whether a change deletes a key."""
    return change.kind == "key" and change.after is None


def _is_revoked(change: StoreChange, text: str | None) -> bool:
    if text is None or change.kind == "team":
        return False
    document = IssuedKey.decode(text) if change.kind == "key" else Overlay.decode(text)
    return document.revoked_at is not None
