"""The section `plugins`: a list of plug-ins, in the order in which they see a call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from gateway.config.faults import ConfigFault, format_faults, printable
from gateway.config.sections import Config, Section
from gateway.config.wings import WingSection

from .loading import LoadedPlugin, Unloadable, load


def _read_use(value: Any) -> Any:
    """`package.module:factory`, in Python's names."""
    if isinstance(value, str):
        module, colon, path = value.partition(":")
        names = [*module.split("."), *path.split(".")]
        if not colon or not all(name.isidentifier() for name in names):
            raise ValueError("expected a module and what makes the plug-in, such as our_plugins.markers:Markers")
    return value


class PluginUse(Section):
    """One plug-in; a text alone is its `use`."""

    use: Annotated[str, BeforeValidator(_read_use)]
    """Module and class, or a function that makes the plug-in: `package.module:Class`."""
    options: dict[str, Any] = Field(default_factory=dict, repr=False)
    """Passed to the class or function by their names."""

    @model_validator(mode="before")
    @classmethod
    def _read_text(cls, value: Any) -> Any:
        return {"use": value} if isinstance(value, str) else value


MAX_FAULT = 900
"""Characters of a fault: a factory may have any number of parameters."""

USES = tuple[PluginUse, ...]


def uses_of(config: Config) -> Sequence[PluginUse]:
    """The entries of a configuration."""
    found: Sequence[PluginUse] = vars(config)["plugins"]
    return found


def loaded(config: Config) -> list[LoadedPlugin]:
    """The plug-ins of a configuration that was built, which is why all of them can be loaded."""
    return [load(each.use, each.options) for each in uses_of(config)]


def place_of(number: int) -> str:
    """The place of an entry in the file."""
    return format_faults(("plugins", number))


def _faults_of(config: Config) -> Iterator[ConfigFault]:
    for number, each in enumerate(uses_of(config)):
        try:
            load(each.use, each.options)
        except Unloadable as error:
            path = place_of(number) if error.setting == "use" else f"{place_of(number)}.{error.setting}"
            yield ConfigFault(path, printable(f"{each.use}: {error.message}")[:MAX_FAULT])


SECTION = WingSection("plugins", USES, faults=_faults_of)
