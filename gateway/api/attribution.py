"""Attribution of a call by its client: a user of its own, and tags.

The user is the first text of `safety_identifier` and `user` (OpenAI) and `metadata.user_id` (Anthropic). Tags are the
headers `x-gateway-tag-NAME`, which are not forwarded, and other members of `metadata` with a text that is fit to be
one. Of both, what looks like an API key is replaced by `***`: reports must not show secrets. The client's body is
forwarded as it is. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from gateway.config import RecordSettings
from gateway.errors import InvalidRequest
from gateway.records import TAG_SEPARATOR

from .auth import API_KEY_PATTERN

PREFIX = "x-gateway-tag-"

MAX_TAGS = 8
MAX_VALUE = 64
"""Characters of a tag's value."""

MAX_USER = 128
"""Characters of a user; what is behind them is cut off."""

_API_KEY = re.compile(API_KEY_PATTERN)
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,31}")


class Attribution(NamedTuple):
    """The user and the tags of a call, as its record holds them."""

    user: str = ""
    tags: str = ""


UNATTRIBUTED = Attribution()


def attribution_of(headers: Iterable[tuple[str, str]], members: Mapping[str, Any], kept: RecordSettings) -> Attribution:
    """The user and the tags of a request, as far as records have them. Raises `InvalidRequest` for a header that cannot
    be a tag, in any case."""
    named = [(tag, value) for name, value in headers if (tag := _tag(name)) is not None]
    metadata = members.get("metadata")
    user = members.get("safety_identifier") or members.get("user")
    if not (named or metadata or user):
        return UNATTRIBUTED
    tags = _checked(named) if named else {}
    if isinstance(metadata, dict):
        user = user or metadata.get("user_id")
        for name, value in metadata.items():
            if len(tags) < MAX_TAGS and name != "user_id" and _is_tag(name, value):
                tags.setdefault(name, value)
    is_user = kept.user and isinstance(user, str) and user[:MAX_USER].isprintable()
    if not kept.tags:
        tags = {}
    return Attribution(
        _without_keys(str(user)[:MAX_USER]) if is_user else "",
        TAG_SEPARATOR.join([f"{name}={_without_keys(value)}" for name, value in sorted(tags.items())]),
    )


def _without_keys(text: str) -> str:
    return _API_KEY.sub("***", text)


@lru_cache(maxsize=256)
def _tag(header: str) -> str | None:
    header = header.lower()
    return header.removeprefix(PREFIX) if header.startswith(PREFIX) else None


def _checked(named: list[tuple[str, str]]) -> dict[str, str]:
    for name, value in named:
        if not _is_tag(name, value):
            raise InvalidRequest(
                f"Invalid header '{PREFIX}{name[:MAX_VALUE]}': expected a name of at most 32 letters, digits, '.', '_' "
                f"and '-', and a value of 1 to {MAX_VALUE} printable characters.",
                param=f"{PREFIX}{name[:MAX_VALUE]}", code="invalid_tag",
            )  # fmt: skip
    if len(named) > MAX_TAGS:
        raise InvalidRequest(
            f"Too many tags: expected at most {MAX_TAGS} headers '{PREFIX}NAME'.", param=PREFIX, code="too_many_tags"
        )
    return dict(named)


def _is_tag(name: str, value: Any) -> bool:
    return (
        isinstance(value, str)
        and 0 < len(value) <= MAX_VALUE
        and value.isprintable()
        and _NAME.fullmatch(name) is not None
    )
