"""Lost changes: into which document each is merged, and what the journal of them keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import KeySettings, Quota, Team
from gateway.keys import decision_file
from gateway.keys.decision_file import Decision, DecisionFile
from gateway.keys.restoration import again, audit_alone, ends_a_key, merged
from gateway.quota.issued import IssuedKey, IssuedTeam, Overlay, SecretOf, TopUp
from gateway.store import DocumentKind, StoreChange

SECRETS = (SecretOf("ab", 1),)


def key(updated_at: float, revoked_at: float | None = None, created_at: float = 1) -> str:
    return IssuedKey(KeySettings(id="k"), SECRETS, created_at, updated_at, revoked_at).encode()


def team(updated_at: float) -> str:
    return IssuedTeam(Team(), 1, updated_at).encode()


def person(number: int | None = None, role: str | None = None) -> str:
    quotas = None if number is None else (Quota(requests=number, per="day"),)
    return Overlay(quotas=quotas, role=role).encode()


def facts(**more: int) -> str:
    return Overlay(more=more).encode()


def overlay(requests: int = 0, revoked_at: float | None = None) -> str:
    top_ups = (TopUp("requests", "day", None, "2026-11-20", requests),) if requests else ()
    return Overlay(revoked_at, top_ups).encode()


@pytest.mark.parametrize(
    ("kind", "before", "after", "present", "expected"),
    [
        # The store has the document as it was, or none at all.
        ("key", key(1), key(2), key(1), key(2)),
        ("key", None, key(1), None, key(1)),
        ("key", key(1), key(2, revoked_at=2), None, key(2, revoked_at=2)),
        ("team", team(1), None, team(1), None),
        ("team", team(1), None, None, None),
        ("overlay", None, overlay(revoked_at=3), None, overlay(revoked_at=3)),
        # It has an older one.
        ("key", key(2), key(3), key(1), key(3)),
        ("key", key(2), key(3, revoked_at=3), key(1), key(3, revoked_at=3)),
        ("team", team(2), team(3), team(1), team(3)),
        ("team", team(2), None, team(1), None),
        # It has a newer one, which wins, but for a revocation.
        ("key", key(1), key(2), key(9), key(9)),
        ("key", key(1), key(2), key(9, revoked_at=9), key(9, revoked_at=9)),
        ("key", key(1), key(2, revoked_at=2), key(9), key(9, revoked_at=2)),
        ("key", None, key(1), key(5, revoked_at=5), key(5, revoked_at=5)),
        ("team", team(1), team(2), team(9), team(9)),
        ("team", team(1), None, team(9), team(9)),
        ("overlay", None, overlay(revoked_at=3), overlay(5), overlay(5, revoked_at=3)),
        ("overlay", None, person(3), None, person(3)),
        ("overlay", facts(a=1, b=1), facts(a=2, b=1), facts(a=1, b=3, c=4), facts(a=2, b=3, c=4)),
        ("overlay", person(3), person(3, "lead"), person(4), person(4, "lead")),
        ("overlay", person(3, "lead"), person(None, "lead"), person(3, "member"), person(None, "member")),
        # A key that was deleted is deleted, in any version; a later one of its id is not.
        ("key", key(2), None, key(2), None),
        ("key", key(2), None, key(1), None),
        ("key", key(2), None, key(3), None),
        ("key", key(2), None, None, None),
        ("key", key(2), None, key(9, created_at=8), key(9, created_at=8)),
        # Top-ups are added, in any order.
        ("overlay", overlay(100), overlay(150), None, overlay(50)),
        ("overlay", None, overlay(100), overlay(50), overlay(150)),
        ("overlay", overlay(7), overlay(7), overlay(7, revoked_at=1), overlay(7, revoked_at=1)),
    ],
)
def test_the_document_after_a_lost_change(
    kind: DocumentKind, before: str | None, after: str | None, present: str | None, expected: str | None
) -> None:
    assert merged(StoreChange(kind, "k", before, after, "audit"), present) == expected


@pytest.mark.parametrize(
    ("kind", "before", "after", "expected"),
    [
        ("key", key(1), key(2, revoked_at=2), True),
        ("key", key(1), key(2), False),
        ("key", None, key(1), False),
        ("overlay", None, overlay(revoked_at=1), True),
        ("overlay", overlay(revoked_at=1), overlay(5, revoked_at=1), False),
        ("key", key(1), None, True),
        ("team", team(1), None, False),
        ("overlay", overlay(1), None, False),
    ],
)
def test_what_ends_a_key(kind: DocumentKind, before: str | None, after: str | None, expected: bool) -> None:
    assert ends_a_key(StoreChange(kind, "k", before, after, "audit")) is expected


def test_a_deletion_takes_the_secrets_that_the_store_has() -> None:
    deleted = StoreChange("key", "k", key(2), None, "audit", secrets_removed=("cd",))
    assert {*again(deleted, key(1)).secrets_removed} == {"ab", "cd"}
    assert again(deleted, None).secrets_removed == ("cd",)


def test_a_change_of_a_key_that_was_deleted_later_is_logged_alone() -> None:
    made = StoreChange("key", "k", None, key(1), "audit", ("ab",), journal="j", number=3)
    assert audit_alone(made, None) == StoreChange("key", "k", None, None, "audit", journal="j", number=3)


# -------------------------------------------------------------------------------------------------------------- file


def opened(folder: Path) -> DecisionFile:
    file = DecisionFile.of(folder, "redis://somewhere/0 gateway")
    file.create()
    file.refresh()
    return file


def paths(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def made(number: int, *, revokes: bool = False) -> Decision:
    after = key(number, revoked_at=number if revokes else None)
    return Decision(number, StoreChange("key", f"k{number}", key(0), after, "audit", ("ab",), ("cd",)))


async def test_two_processes_share_one_file(tmp_path: Path) -> None:
    one, other = opened(tmp_path), opened(tmp_path)
    assert one.journal == other.journal != ""
    async with one.locked():
        one.append(made(1))
    async with other.locked():
        assert other.last == 1
        other.append(Decision(2, None))
    one.refresh()
    assert one.decisions == other.decisions == opened(tmp_path).decisions == [made(1), Decision(2, None)]
    assert {path.stat().st_mode & 0o777 for path in paths(tmp_path)} == {0o600}


async def test_a_line_that_was_cut_is_left_out(tmp_path: Path) -> None:
    file = opened(tmp_path)
    async with file.locked():
        file.append(made(1))
    (path,) = [path for path in paths(tmp_path) if path.suffix == ""]
    with path.open("ab") as cut:
        cut.write(b'{"number": 2, "chan')
    again = opened(tmp_path)
    assert again.decisions == [made(1)]
    async with again.locked():
        again.append(made(3))
    assert opened(tmp_path).decisions == [made(1), made(3)]


async def test_the_file_is_bounded_and_keeps_revocations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_file, "MAX_CHANGES", 10)
    file = opened(tmp_path)
    for number in range(1, 101):
        async with file.locked():
            file.append(made(number, revokes=number == 3))
    numbers = [decision.number for decision in opened(tmp_path).decisions]
    assert numbers[0] == 3
    assert numbers[1:] == [*range(101 - len(numbers) + 1, 101)]
    assert len(numbers) <= 21
    assert opened(tmp_path).journal == file.journal


def test_a_damaged_first_line_is_named(tmp_path: Path) -> None:
    file = opened(tmp_path)
    (path,) = [path for path in paths(tmp_path) if path.suffix == ""]
    path.write_bytes(b"?" * 100 + b"\n")
    with pytest.raises(OSError, match="first line is damaged"):
        DecisionFile.of(tmp_path, "redis://somewhere/0 gateway").refresh()
    assert file.journal
