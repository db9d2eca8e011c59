"""`store`: where keys, quotas and usage are kept."""

from __future__ import annotations

from functools import cached_property
from os.path import realpath
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator

from gateway.config.redis_url import FORMS, RedisURL, read_redis_url

from .values import NOT_BOOL, Positive, Seconds, Section, or_else, plain_path, read_days


def _store_url(url: str) -> str:
    scheme, _, folder = url.partition(":")
    if scheme in FORMS:
        ca_file = read_redis_url(url).ca_file
        if ca_file is not None and not Path(ca_file).is_file():
            raise ValueError("the file that ca_file names is not there")
    elif scheme != "embedded" or not folder or folder.startswith("//"):
        raise ValueError("expected embedded:FOLDER, for instance embedded:./gateway-data, or redis://host:6379/0")
    else:
        plain_path(folder)
    return url


class StoreSettings(Section):
    url: Annotated[str, AfterValidator(_store_url), Field(repr=False)] = "embedded:./gateway-data"
    """Where keys, quotas and usage live: embedded:FOLDER, redis://, rediss://, redis+sentinel:// or redis+cluster://."""
    namespace: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")] = "gateway"
    """The name of the ledger; gateways that share it share quotas."""
    journal_dir: Annotated[str, Field(min_length=1, validate_default=True), AfterValidator(plain_path)] = (
        "./gateway-journal"
    )
    """Usage that is not yet delivered to the store; one folder per gateway, on a local disk that outlives it."""
    on_outage: Literal["deny", "allow"] = "deny"
    """deny: 503 while the store is away; allow: a share of each limit, journalled and settled later."""
    outage_share: Annotated[float, NOT_BOOL, Field(gt=0, le=1)] = 0.1
    """With on_outage: allow, the share of each limit that each worker may spend alone."""
    outage_max_s: Seconds = 900
    """With on_outage: allow, for how long at most within an hour."""
    usage_records_max: Positive = 1000000
    """The newest usage records that are kept; daily sums stay for sums_days."""
    sums_days: Annotated[
        int,
        Field(ge=1, le=36500),
        BeforeValidator(read_days),
        or_else("expected whole days, from 1 to 36500, such as 800, 90d or 52w"),
        NOT_BOOL,
    ] = 800
    """For how many days the daily sums are kept."""

    @field_validator("journal_dir")
    @classmethod
    def _is_a_folder_of_its_own(cls, folder: str, info: ValidationInfo) -> str:
        scheme, _, place = info.data.get("url", "").partition(":")
        if scheme == "embedded" and realpath(folder) == realpath(place):
            raise ValueError("must not be the store's own folder")
        return folder

    @property
    def is_embedded(self) -> bool:
        """Whether the store is a folder of this node, and no server."""
        return self.url.startswith("embedded:")

    @property
    def origin(self) -> str:
        """Which ledger this is, without credentials: a journal is only delivered where it belongs."""
        where = str(self.folder.resolve()) if self.is_embedded else self.shown_url
        return f"{where} {self.namespace}"

    @property
    def shown_url(self) -> str:
        """`url` without the credentials that it may hold: what people may see of it."""
        return self.url if self.is_embedded else str(self.redis)

    @cached_property
    def redis(self) -> RedisURL:
        return read_redis_url(self.url)

    @property
    def folder(self) -> Path:
        return Path(self.url.partition(":")[2])
