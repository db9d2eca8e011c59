"""Whom a request names as its user, and its tags."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.api.attribution import MAX_TAGS, UNATTRIBUTED, attribution_of
from gateway.config import RecordSettings
from gateway.errors import InvalidRequest
from gateway.records import TAG_SEPARATOR

ALL = RecordSettings()


@pytest.mark.parametrize(
    ("members", "user"),
    [
        ({"user": "ada"}, "ada"),
        ({"user": "ada", "safety_identifier": "hash"}, "hash"),
        ({"metadata": {"user_id": "ada"}}, "ada"),
        ({"user": "zoë 🦊"}, "zoë 🦊"),
        ({"user": "a" * 500}, "a" * 128),
        ({"user": 7}, ""),
        ({"user": "sk-live-0123456789"}, "***"),
        ({"user": "ask-for-help"}, "ask-for-help"),
        ({"user": "a\nb"}, ""),
        ({"user": "half \ud83d"}, ""),
        ({"user": ""}, ""),
        ({"user": None, "metadata": None}, ""),
    ],
)
def test_user(members: dict[str, Any], user: str) -> None:
    assert attribution_of([], members, ALL).user == user


def test_tags_are_headers_and_fit_metadata() -> None:
    headers = [("Accept", "*/*"), ("X-Gateway-Tag-Project", "Atlas 2"), ("x-gateway-tag-stage", "test")]
    metadata = {"project": "other", "team": "a=b", "Big": "x", "long": "x" * 65, "number": 3, "user_id": "ada"}
    found = attribution_of(headers, {"metadata": metadata}, ALL)
    assert found == ("ada", "project=Atlas 2\x1fstage=test\x1fteam=a=b")


def test_nothing_is_said() -> None:
    assert attribution_of([("Accept", "*/*")], {"model": "m"}, ALL) is UNATTRIBUTED


def test_metadata_has_room_for_few() -> None:
    found = attribution_of([], {"metadata": {f"m{number}": "x" for number in range(16)}}, ALL)
    assert len(found.tags.split("\x1f")) == MAX_TAGS


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ([("x-gateway-tag-", "a")], "invalid_tag"),
        ([("x-gateway-tag-a!", "a")], "invalid_tag"),
        ([("x-gateway-tag-" + "a" * 33, "a")], "invalid_tag"),
        ([("x-gateway-tag-a", "")], "invalid_tag"),
        ([("x-gateway-tag-a", "a" * 65)], "invalid_tag"),
        ([("x-gateway-tag-a", "a\tb")], "invalid_tag"),
        ([(f"x-gateway-tag-{number}", "a") for number in range(9)], "too_many_tags"),
    ],
)
def test_header_that_is_no_tag(headers: list[tuple[str, str]], code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        attribution_of(headers, {}, ALL)
    assert caught.value.code == code


@pytest.mark.parametrize(("user", "tags"), [(True, True), (True, False), (False, True), (False, False)])
def test_what_is_kept_out_of_records(user: bool, tags: bool) -> None:
    kept = RecordSettings(user=user, tags=tags)
    found = attribution_of([("x-gateway-tag-a", "b")], {"user": "ada", "metadata": {"c": "d", "user_id": "eve"}}, kept)
    assert found == ("ada" if user else "", f"a=b{TAG_SEPARATOR}c=d" if tags else "")
    with pytest.raises(InvalidRequest):
        attribution_of([("x-gateway-tag-a", "")], {}, kept)
