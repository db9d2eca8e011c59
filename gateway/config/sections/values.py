"""The types of values that several sections share: numbers, times, sizes, money, names and addresses."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from gateway.config.proxies import read_proxy
from gateway.config.quantities import (
    COUNT_EXAMPLES,
    DURATION_EXAMPLES,
    SIZE_EXAMPLES,
    is_duration,
    read_amount,
    read_count,
    read_duration_s,
    read_moment,
    read_size,
)


def _refuse_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("expected a number, not true or false")
    return value


NOT_BOOL = BeforeValidator(_refuse_bool)

ONE_OR_SEVERAL = BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
"""Reads one text as a list of it."""

TRUE_IS_DEFAULTS = BeforeValidator(lambda value: {} if value is True else None if value is False else value)
"""Reads true as a section of defaults, and false as none."""


def or_else(words: str) -> WrapValidator:
    """One fault in these words, where each arm of a union would have one of its own."""

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError:
            raise ValueError(words) from None

    return WrapValidator(check)


def read_by(read: Callable[[str], float]) -> BeforeValidator:
    """Text is read by the grammar of `quantities`, unless it is a plain number."""

    def check(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return float(value) if read is read_duration_s else int(value)
        except ValueError:
            return read(value)

    return BeforeValidator(check)


MAX_COUNT = 2**53 - 1
_whole = f"expected a whole number such as {COUNT_EXAMPLES}"
SPAN_EXAMPLES = f"such as {DURATION_EXAMPLES}, or a number of seconds"
Count = Annotated[
    int, Field(ge=0, le=MAX_COUNT), read_by(read_count), or_else(f"{_whole}, from 0 to {MAX_COUNT}"), NOT_BOOL
]
Positive = Annotated[
    int, Field(ge=1, le=MAX_COUNT), read_by(read_count), or_else(f"{_whole}, from 1 to {MAX_COUNT}"), NOT_BOOL
]
Size = Annotated[
    int,
    Field(ge=1, le=MAX_COUNT),
    read_by(read_size),
    or_else(f"expected a size such as {SIZE_EXAMPLES}, or a number of bytes, from 1 to {MAX_COUNT}"),
    NOT_BOOL,
]
Seconds = Annotated[
    float,
    Field(ge=0, allow_inf_nan=False),
    read_by(read_duration_s),
    or_else(f"expected a time of 0 or more {SPAN_EXAMPLES}"),
    NOT_BOOL,
]
SomeSeconds = Annotated[
    float,
    Field(gt=0, allow_inf_nan=False),
    read_by(read_duration_s),
    or_else(f"expected a time greater than 0 {SPAN_EXAMPLES}"),
    NOT_BOOL,
]
DAY_S = 86400


def read_days(value: Any) -> Any:
    """A number of days, or a duration such as `90d` or `52w` that is a whole number of them."""
    if not isinstance(value, str) or not is_duration(value):
        return value
    days = read_duration_s(value) / DAY_S
    return int(days) if days.is_integer() else None


def _refuse_number(value: Any) -> Any:
    if isinstance(value, int | float):  # which ipaddress takes for an address, and false for 0.0.0.0
        raise ValueError("not a network")
    return value


Network = Annotated[
    IPv4Network | IPv6Network,
    BeforeValidator(_refuse_number),
    or_else("expected a network such as 10.0.0.0/8, with nothing but zeros behind its prefix, or one address"),
]

NUSD = 10**9
"""Billionths in a US dollar: money is counted in them, in whole numbers."""
MAX_USD = Decimal(2**53 - 1) / NUSD
"""Largest count: Lua in Redis is exact for whole numbers below 2^53 only."""


def _read_usd(value: Any) -> Decimal:
    """The number as written in the file: `str` of a float is its shortest text, which is the text it was read from."""
    try:
        usd = Decimal("nan" if isinstance(value, bool) else str(value))
    except (InvalidOperation, ValueError):
        usd = read_amount(str(value)) or Decimal("nan")
    if not usd.is_finite():
        raise ValueError("expected a number of US dollars, such as 20 or 0.15")
    if not 0 <= usd <= MAX_USD:
        raise ValueError(f"expected a number of US dollars from 0 to {MAX_USD:.0f}")
    if usd != round(usd, 9):
        raise ValueError("expected a number of US dollars with at most 9 decimals")
    return usd


def _refuse_nothing(usd: Decimal) -> Decimal:
    if not usd:
        raise ValueError("expected a number of US dollars greater than 0")
    return usd


def nusd_of(usd: Decimal) -> int:
    return int(round(usd, 9).scaleb(9))


Usd = Annotated[Decimal, BeforeValidator(_read_usd)]
SomeUsd = Annotated[Usd, AfterValidator(_refuse_nothing)]


CAUSES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\s*"), "is empty"),
    (re.compile("\ufeff.*", re.DOTALL), "begins with a byte order mark: save it as UTF-8 without one"),
    (re.compile(r"\s*(?:bearer|basic|token)\s.*", re.DOTALL | re.IGNORECASE),
     "begins with the word of a header such as 'Bearer ', which the gateway writes itself: leave it out"),
    (re.compile(r".*(?:\{\{|\}\}|<%|%>|\{%).*", re.DOTALL), "looks like a template that was not filled"),
    (re.compile(r".*[\r\n].+", re.DOTALL), "has several lines"),
    (re.compile(r".*[\r\n]", re.DOTALL), "ends with a line break"),
    (re.compile(r"[ \t].*"), "begins with a blank"),
    (re.compile(r".*[ \t]"), "ends with a blank"),
    (re.compile(".*[\u00a0\u2000-\u200b\u202f\u3000\u2060\ufeff].*"), "holds a blank that is not seen"),
    (re.compile(".*[\u2018\u2019\u201c\u201d\u201e\u00ab\u00bb].*"), "holds typographic quotes"),
    (re.compile(".*[\u2010-\u2015\u2212].*"), "holds a typographic dash in the place of -"),
    (re.compile(r".*[ \t].*"), "holds a blank"),
    (re.compile(r"(['\"]).*\1"), "has quotes around it"),
)  # fmt: skip
"""The whole of a secret that no header can hold, and the cause."""


def _visible_ascii(secret: SecretStr | None) -> SecretStr | None:
    if secret is not None and not re.fullmatch(r"[\x21-\x7e]+", text := secret.get_secret_value()):
        cause = next((f"{cause}; " for form, cause in CAUSES if form.fullmatch(text)), "")
        raise ValueError(f"{cause}expected visible ASCII characters without spaces")
    return secret


Secret = Annotated[SecretStr, AfterValidator(_visible_ascii)]
"""A text that is sent in a header, which can hold no other signs."""


def read_off(value: Any) -> Any:
    return "off" if value is False else value  # as YAML reads the word


class Section(BaseModel):
    """A part of the file: frozen, unknown names refused, input never echoed in an error (it may be a secret)."""

    # Deferred: `Config` checks all sections with one validator; those of each would take 3 MB.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True)


def plain_path(path: str) -> str:
    """A path, in which a shell's ~ and $HOME would be names of folders."""
    if path.startswith(("~", "$", "%")):
        raise ValueError(f"{path[0]} is no folder here: write the whole path, such as /home/NAME/..., or ${{NAME}}")
    return path


def read_public_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        host = None
    is_plain = host and parts.username is None and not parts.query and not parts.fragment
    if not is_plain or parts.scheme not in ("http", "https") or not (url.isascii() and url.isprintable()):
        raise ValueError("expected an address such as https://gateway.example.org, without user, query and fragment")
    return url.rstrip("/")


def certificates(path: str) -> str:
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path!r}")
    try:
        ssl.create_default_context(cafile=path)
    except OSError:
        raise ValueError(f"{path!r} holds no certificates in PEM that can be read") from None
    return path


LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def is_safe_url(url: str) -> bool:
    """Whether secrets and keys may travel to or from this address: by https, or within this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    is_plain = parts.username is None and not parts.fragment and url.isascii() and url.isprintable() and " " not in url
    return is_plain and bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and host in LOOPBACK))


def _safe_url(url: str) -> str:
    if not is_safe_url(url):
        raise ValueError("expected an address with https://, without user and fragment; http:// on this machine alone")
    return url


SafeUrl = Annotated[str, AfterValidator(_safe_url)]


# Names that would change how the message is framed, and that the gateway writes itself.
FRAMING = frozenset({
    "host", "content-length", "content-type", "transfer-encoding", "connection", "accept-encoding", "expect", "te",
    "trailer", "upgrade", "keep-alive", "proxy-authorization", "proxy-connection",
})  # fmt: skip
OWN_HEADERS = FRAMING | {"authorization"}


def plain_headers(headers: dict[str, SecretStr], own: frozenset[str]) -> dict[str, SecretStr]:
    """Headers that can be sent as they are. Raises `ValueError`, also for those of our own."""
    for name, value in headers.items():
        if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name):
            raise ValueError(f"{name!r} is not a header name")
        if name.lower() in own:
            raise ValueError(f"{name!r} is written by the gateway itself and cannot be set here")
        if not re.fullmatch(r"[\x20-\x7e]*", value.get_secret_value()):
            raise ValueError(f"the value of {name!r} holds characters that no header may hold")
    return headers


def proxy_address(address: SecretStr | None) -> SecretStr | None:
    if address is not None:
        read_proxy(address.get_secret_value())
    return address


def is_glob(pattern: str) -> bool:
    """Whether it may match several names, as `fnmatch` reads it."""
    return not set("*?[").isdisjoint(pattern)


def shown_address(url: str) -> str:
    """Scheme and host, for all else of an address may be a secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def is_http(url: str) -> bool:
    """Whether this is an http or https address with a host."""
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return is_good and re.fullmatch(r"[\x21-\x7e]+", url) is not None


BAD_SIGNS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Characters that no name may hold: columns and lines of reports would shift, or it could not be written at all."""


def is_plain_name(name: str) -> bool:
    """Whether a name can be used in reports and metrics."""
    return BAD_SIGNS.search(name) is None


def refuse_signs(pattern: Any) -> Any:
    if isinstance(pattern, str) and "|" in pattern:
        raise ValueError("expected a pattern without |, which no pattern of models needs")
    if isinstance(pattern, str) and BAD_SIGNS.search(pattern):
        raise ValueError("expected a pattern without control characters")
    return pattern


def moment_of(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if is_duration(value):
        raise ValueError("a time from now would change at each start; expected a day such as 2027-01-01")
    return read_moment(value)


Moment = Annotated[AwareDatetime, BeforeValidator(moment_of)]


def one_line(text: str) -> str:
    if BAD_SIGNS.search(text):
        raise ValueError("expected text without control characters and line breaks")
    return text


Priority = Literal["interactive", "normal", "batch"]
"""Classes of waiting calls, the most urgent first."""
