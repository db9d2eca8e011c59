"""Filters as providers send them."""

from __future__ import annotations

import pytest

from gateway.wings.scim.faults import ScimFault
from gateway.wings.scim.filters import matches, read_filter

USER = {
    "id": "Ab-1", "userName": "Ann@Example.org", "externalId": "00u1", "active": True,
    "emails": [{"type": "work", "value": "ann@x"}, {"type": "home", "value": "ann@y"}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "is_meant"),
    [
        ('userName eq "ann@example.org"', True),
        ('username EQ "ann@example.org"', True),
        ('userName eq "bob"', False),
        ('externalId eq "00u1"', True),
        ('externalId eq "00U1"', False),
        ('id eq "ab-1"', False),
        ("active eq true", True),
        ("active eq False", False),
        ('emails[type eq "work"].value eq "ann@x"', True),
        ('emails[type eq "work"].value eq "ann@y"', False),
        ('emails.value eq "ann@y"', True),
        ('userName eq "ann@example.org" and active eq true', True),
        ('userName eq "ann@example.org" and active eq false', False),
        ('urn:ietf:params:scim:schemas:core:2.0:User:userName eq "ann@example.org"', True),
        ('userName eq "a\\"b"', False),
        ('nickName eq "ann"', False),
    ],
)
def test_a_filter(text: str, is_meant: bool) -> None:
    assert matches(USER, read_filter(text)) is is_meant


@pytest.mark.parametrize("text", ["", "userName", 'userName co "a"', "userName eq ann", 'userName eq "a" or id eq "b"',
                                  'userName eq "a" and', 'userName eq "\\x"'])  # fmt: skip
def test_other_filters_are_refused(text: str) -> None:
    with pytest.raises(ScimFault) as raised:
        read_filter(text)
    assert (raised.value.status, raised.value.kind) == (400, "invalidFilter")
