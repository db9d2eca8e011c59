"""The whole configuration: its sections, and the settings that models and new keys have by default."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field

from gateway.config.model_names import is_pattern

from .admin import AdminSettings
from .keys import FileKey, KeyDefaults, PersonLimits, Quota, Team, folded_people, known_groups
from .models import Model, ModelSettings, ModelTable, NamedModel
from .prices import PriceSettings
from .server import FileSettings, MetricsSettings, RecordSettings, ServerSettings, TracingSettings, UploadSettings
from .store import StoreSettings
from .upstreams import Upstream
from .values import Section

S = TypeVar("S", bound=Section)


class Defaults(Section):
    models: ModelSettings = ModelSettings()
    """Settings of every model that does not have them itself."""
    keys: KeyDefaults = KeyDefaults()
    """Settings of keys that are made by command or by the admin API; keys of the file have none of them."""


def refuse_from(models: Any) -> Any:
    if isinstance(models, dict) and isinstance(names := models.get("from"), str | list):
        listed = names if isinstance(names, str) else ", ".join(map(str, names))
        raise ValueError(
            f"from is no model; to serve what {listed} lists, set discover: true beside base_url of that upstream"
        )
    return models


class GivenRole(NamedTuple):
    """The role that the rules for an identity provider give to a person."""

    role: Literal["operator", "lead", "member", "viewer"]
    team: str | None = None
    """The team of a lead."""


class IdentityProvider(Section):
    """The base of those sections of wings that let people in whom an identity provider names."""

    gives_roles: ClassVar[bool] = False
    """Whether people sign in to the admin API, with roles."""

    def role_of(self, name: str, groups: Collection[str]) -> GivenRole | None:
        """The role of a person in these groups; None: she may not sign in."""
        return None


class AddedApi(Section):
    """The base of the settings of an API that a wing passes on as it is; calls name no model of the configuration."""

    upstream: str
    """Name of an upstream; its base URL is without the prefix of the row."""
    prefix: Annotated[str, Field(pattern=r"^(/[\w.~-]+)*$")] = ""
    """Beginning of the paths that clients ask for."""


class Config(Section):
    """The file but for the sections of wings, with which `config/wings.py` extends it."""

    server: ServerSettings = ServerSettings()
    """Where and how to serve."""
    uploads: UploadSettings = UploadSettings()
    """Multipart forms."""
    files: FileSettings = FileSettings()
    """Files that an upstream keeps for clients."""
    store: StoreSettings = StoreSettings()
    """Keys, quotas, usage: the data that outlives a request."""
    admin: AdminSettings = AdminSettings()
    """The admin API."""
    records: RecordSettings = RecordSettings()
    """The facts that records keep of a call beside its numbers."""
    metrics: MetricsSettings = MetricsSettings()
    """/metrics."""
    upstreams: Annotated[dict[str, Upstream], Field(min_length=1)]
    """Where calls can go, by name."""
    defaults: Defaults = Defaults()
    """The settings that models and new keys have by default."""
    models: Annotated[dict[str, Model], BeforeValidator(refuse_from)] = {}
    """The models that clients may use, by name or by pattern: gpt-4o*; "*" is every other model."""
    prices: PriceSettings = PriceSettings()
    """The price table."""
    aliases: dict[str, str] = {}
    """Further names of models: {fast: gpt-4o-mini}."""
    quotas: tuple[Quota, ...] = ()
    """Limits of the usage of the whole gateway."""
    teams: dict[str, Team] = {}
    """Teams, by name."""
    people: Annotated[dict[str, PersonLimits], BeforeValidator(known_groups), AfterValidator(folded_people)] = {}
    """Limits of people, by the owner of their keys; defaults for those who are not named, role:lead for a role."""
    keys: tuple[FileKey, ...] = ()
    """Keys of clients."""
    tracing: TracingSettings = TracingSettings()
    """Where traces of calls go."""

    @cached_property
    def model_table(self) -> ModelTable:
        """The model that serves each name that a client may ask for."""
        return ModelTable(self.models, self.aliases)

    @property
    def labelled_models(self) -> list[str]:
        """The models that have a label before they are used: all, or none where they are too many."""
        names = [name for name in self.models if not is_pattern(name)]
        return names if len(names) <= self.metrics.max_models else []

    @property
    def has_admin_api(self) -> bool:
        """Whether there is a way to use the admin API."""
        return self.admin.is_on or self.sign_in is not None

    @property
    def sign_in(self) -> IdentityProvider | None:
        """The provider by which people sign in to the admin API."""
        return next((each for each in self.sections(IdentityProvider) if each.gives_roles), None)

    def section(self, kind: type[S]) -> S:
        return self.sections(kind)[0]

    def sections(self, kind: type[S]) -> list[S]:
        """The sections of this kind that there are."""
        return [value for value in vars(self).values() if isinstance(value, kind)]

    def model(self, name: str) -> NamedModel | None:
        """The model that serves this name, or None where it is not offered."""
        return self.model_table.find(name)


def is_expired(expires: datetime | None, now: float) -> bool:
    """Whether a key with this expiry is over at the Unix time `now`."""
    return expires is not None and now >= expires.timestamp()
