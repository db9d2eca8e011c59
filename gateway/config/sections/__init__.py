"""The sections of the file: each field with its type, its default and one sentence. One module for each section."""

from __future__ import annotations

from .admin import AdminSettings, AdminToken
from .keys import (
    MAX_LABELS,
    MAX_PERSON,
    NAME_PATTERN,
    PERSON_DEFAULTS,
    ROLE_PREFIX,
    FileKey,
    KeyDefaults,
    KeySettings,
    LabelValue,
    MemberKeys,
    Per,
    PersonLimits,
    Quota,
    Team,
    folded_name,
)
from .models import EndpointName, Limits, Model, ModelSettings, ModelTable, NamedModel, Route, Sticky
from .prices import FullRows, LaterPrice, Price, PriceHours, PriceSettings, PriceTier, Rows, TieredRows, TimeOfDay
from .root import AddedApi, Config, Defaults, GivenRole, IdentityProvider, is_expired
from .server import FileSettings, MetricsSettings, RecordSettings, ServerSettings, TracingSettings, UploadSettings
from .store import StoreSettings
from .upstreams import (
    ANTHROPIC_HOST,
    GOOGLE_HOST,
    Capabilities,
    Discovery,
    RateLimits,
    Rates,
    Timeouts,
    Upstream,
    UpstreamLimits,
)
from .values import (
    BAD_SIGNS,
    DAY_S,
    LOOPBACK,
    MAX_COUNT,
    MAX_USD,
    NUSD,
    Count,
    Network,
    Positive,
    Priority,
    SafeUrl,
    Seconds,
    Secret,
    Section,
    Size,
    SomeSeconds,
    SomeUsd,
    Usd,
    is_plain_name,
    is_safe_url,
)
