"""The sections of the file that wings have; and `defaults`, the settings that models of the file and keys that are made
at run time have by default."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import BeforeValidator, Field, ValidationError, create_model

from gateway.wings import parts

from .faults import ConfigFault
from .proxies import Addressed
from .sections import AddedApi, Config, EndpointName, Model, ModelSettings, Upstream
from .sections.root import Defaults, refuse_from


def _none(_: Any) -> Iterator[Any]:
    return iter(())


class WingSection(NamedTuple):
    """One section. It may be absent, so every setting of it has a default, unless it is optional."""

    name: str
    """Its name; `models`: it has no place of its own, but is a part of the settings of each model."""
    kind: Any
    """The type of its settings: of a `Section`, or of a tuple of some."""
    addressed: Callable[[Any], Iterator[Addressed]] = _none
    """The parts of the file's plain values with an address of this wing that is reached through their `proxy`."""
    warnings: Callable[[Config], Iterator[ConfigFault]] = _none
    """Warnings about settings that load and cannot work as meant."""
    faults: Callable[[Config], Iterator[ConfigFault]] = _none
    """Faults between the section and others, looked for in a file without faults of its own."""
    secrets: Mapping[str, str] = {}
    """They are among those of `references.secret_places`."""
    is_optional: bool = False
    """Whether there is none where the file has none; else it has its defaults."""
    has_own_secrets: bool = False
    """Whether a secret of it that another section has, too, is warned of."""

    @property
    def is_of_models(self) -> bool:
        return self.name == "models"


class WingRows(NamedTuple):
    """A section with one row for each API that it adds, by the name of its endpoint."""

    name: str
    kind: type[AddedApi]
    faults: Callable[[Mapping[str, Any], Sequence[str], Sequence[str]], Iterator[ConfigFault]]
    """Faults within and between sound rows, given the names of upstreams and of models: reported beside all others."""


class WingNames(NamedTuple):
    """The names under which models list the endpoints of a wing's formats."""

    endpoints: tuple[str, ...]


class WingUpstream(NamedTuple):
    """The settings of upstreams, with those that a wing adds."""

    kind: type[Upstream]
    provider_of: Callable[[str], str | None] = lambda host: None
    """The provider in the table of prices that bills at a host."""


@cache
def wing_upstreams() -> tuple[WingUpstream, ...]:
    return tuple(parts(WingUpstream, "settings"))


@cache
def wing_sections() -> tuple[WingSection, ...]:
    """The sections of all wings. Asked for when a file is read: their modules import this package."""
    return tuple(parts(WingSection, "settings"))


@cache
def wing_rows() -> tuple[WingRows, ...]:
    return tuple(parts(WingRows, "settings"))


def added_apis(config: Config) -> dict[str, AddedApi]:
    """The rows of all such sections."""
    return {name: row for each in wing_rows() for name, row in getattr(config, each.name).items()}


@cache
def endpoint_names() -> tuple[str, ...]:
    """The names of all endpoints that a model may list."""
    *first, last = get_args(EndpointName)
    return (*first, *[name for each in parts(WingNames, "settings") for name in each.endpoints], last)


@cache
def model_kinds() -> tuple[type[ModelSettings], type[Model]]:
    """`ModelSettings` and `Model` with the settings of all wings."""
    added: list[Any] = [each.kind for each in wing_sections() if each.is_of_models]
    known = copy(ModelSettings.model_fields["endpoints"])
    listed: Any = tuple[Literal[endpoint_names()], ...]  # type: ignore[misc]
    return (
        create_model("ModelSettings", __base__=(ModelSettings, *added), endpoints=(listed, known)),
        create_model("Model", __base__=(Model, *added), endpoints=(listed, known)),
    )


@cache
def whole_file() -> type[Config]:
    """`Config` with the sections of all wings, and their settings of models and upstreams."""
    settings, model = model_kinds()
    defaults = create_model("Defaults", __base__=Defaults, models=(settings, settings()))
    sections: dict[str, Any] = {
        each.name: (each.kind | None, None) if each.is_optional else (each.kind, each.kind())
        for each in wing_sections()
        if not each.is_of_models
    }
    sections |= {each.name: (dict[str, each.kind], {}) for each in wing_rows()}  # type: ignore[name-defined]
    sections["defaults"] = defaults, defaults()
    sections["models"] = Annotated[dict[str, model], BeforeValidator(refuse_from)], {}  # type: ignore[valid-type]
    kind: Any = create_model("Upstream", __base__=(*[each.kind for each in wing_upstreams()], Upstream))
    sections["upstreams"] = (Annotated[dict[str, kind], Field(min_length=1)], ...)
    return create_model("Config", __base__=Config, **sections)


def with_model_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """Plain values, with the settings of `defaults.models` in each model that does not have them.

    A setting counts as a whole: a model's own `price` or `limits` replaces the default one, and null takes it away.
    Defaults with faults are left out; their faults are reported once, in their own place.
    """
    values = dict(values)
    defaults, models = values.get("defaults"), values.get("models")
    given = defaults.get("models") if isinstance(defaults, dict) else None
    if not isinstance(given, dict) or not isinstance(models, dict) or not _is_sound(given):
        return values
    values["models"] = {
        name: {**given, **model} if isinstance(model, dict) else model for name, model in models.items()
    }
    return values


def _is_sound(given: Mapping[str, Any]) -> bool:
    try:
        settings, _ = model_kinds()
        settings.model_validate(given)
    except ValidationError:
        return False
    return True


LAST = 253_402_300_799
"""Unix time of the last second of the year 9999, behind which there is no date."""


def with_key_defaults(body: Mapping[str, Any], config: Config, now: float) -> dict[str, Any]:
    """The settings of a new key, with those of `defaults.keys` that it does not name. `now` is a Unix time."""
    defaults = config.defaults.keys
    added = defaults.model_dump(mode="json", exclude_unset=True)
    if (seconds := added.pop("expires_after_s", None)) is not None:
        added["expires"] = datetime.fromtimestamp(min(int(now + seconds), LAST), UTC).isoformat()
    added["quotas"] = [
        {name: value for name, value in quota.model_dump().items() if value is not None} for quota in defaults.quotas
    ]
    return {**added, **body}
