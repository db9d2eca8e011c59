"""Loads a plug-in: imports its module, calls its factory, and looks at what that has made.

Every fault is a sentence with its remedy. The texts of errors are shown, because an operator needs them, without the
values of the options, which may be secrets.
"""

from __future__ import annotations

import difflib
import inspect
import json
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module, invalidate_caches
from typing import Any, NamedTuple

from .interface import INTERFACE_VERSION, Plugin

FUNCTIONS = {"before_attempt": 1, "head": 2, "event": 2, "end": 2}
"""The plain methods, and how many arguments they get."""
COROUTINES = {"around_attempt": 2, "around_call": 2}
METHODS = FUNCTIONS | COROUTINES

MAX_NAME = 64
_MAX_SHOWN = 300
"""Characters of an error's text."""
_HIDDEN_FROM = 4
"""Characters of an option's text that is hidden: a shorter one is no secret."""
_KEPT = 64


class Unloadable(Exception):
    """Why a plug-in cannot be used, and the setting of its entry that it concerns."""

    def __init__(self, message: str, setting: str = "use") -> None:
        super().__init__(message)
        self.message = message
        self.setting = setting


class LoadedPlugin(NamedTuple):
    plugin: Plugin
    name: str
    version: str
    methods: frozenset[str]
    """The names of its methods."""
    held_up_at: dict[str, float]
    """When each method was last logged because it held up the worker, on the clock of `time.perf_counter`."""

    def __str__(self) -> str:
        has = ", ".join(name for name in METHODS if name in self.methods)
        return f"{' '.join(filter(None, (self.name, self.version)))} ({has})"


def load(use: str, options: Mapping[str, Any]) -> LoadedPlugin:
    """The plug-in of an entry. A process makes one for each entry, so a reload keeps those whose entry is the same.
    Raises `Unloadable`."""
    return _load(use, json.dumps(options, sort_keys=True, default=str))


@lru_cache(maxsize=_KEPT)
def _load(use: str, written_options: str) -> LoadedPlugin:
    options = json.loads(written_options)
    try:
        return checked(_made(_factory(use, options), options), use)
    except (Unloadable, KeyboardInterrupt):
        raise
    except BaseException as error:  # a property, a descriptor or a __getattr__ of its own
        raise Unloadable(f"it cannot be looked at: {_text_of(error, options)}") from None


def _factory(use: str, options: Mapping[str, Any]) -> Any:
    module_name, _, path = use.partition(":")
    invalidate_caches()  # the package may have been installed since the start
    try:
        found: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            raise Unloadable(
                f"there is no module {error.name!r}: install the plug-in's package where the gateway is installed, or "
                "name its folder in PYTHONPATH"
            ) from None
        raise Unloadable(f"its module needs the module {error.name!r}, which is not installed here") from None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit: it is the plug-in that ends, not the gateway
        raise Unloadable(f"its module cannot be imported: {_text_of(error, options)}") from None
    for name in path.split("."):
        near = difflib.get_close_matches(name, [each for each in dir(found) if not each.startswith("_")], n=1)
        if not hasattr(found, name):
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise Unloadable(f"there is no {name!r} in the module {module_name!r}{hint}")
        found = getattr(found, name)
    if not callable(found):
        raise Unloadable(f"{path!r} cannot be called: name a class of a plug-in, or a function that makes one")
    return found


def _made(factory: Any, options: Mapping[str, Any]) -> Any:
    if inspect.iscoroutinefunction(factory):
        raise Unloadable("the factory is a coroutine function, and has to be a plain one: write def, not async def")
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):
        signature = None
    if signature is not None:
        try:
            signature.bind(**options)
        except TypeError as error:
            raise Unloadable(f"the factory {signature} does not take these: {error}", "options") from None
    try:
        return factory(**options)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise Unloadable(f"the factory has failed: {_text_of(error, options)}") from None


def checked(made: Any, use: str) -> LoadedPlugin:
    """The plug-in that a factory has made. Raises `Unloadable` if it is none."""
    if not isinstance(made, Plugin):
        if inspect.iscoroutine(made):
            made.close()
        raise Unloadable(
            f"the factory has made {_article(made)}, and no plug-in: derive its class from gateway.wings.plugins.Plugin"
        )
    version = made.interface
    if type(version) is not int or version == 0:
        raise Unloadable(
            "the plug-in does not name the version of the interface that it was written for: add "
            f"interface = {INTERFACE_VERSION} to its class"
        )
    if version != INTERFACE_VERSION:
        newer = version > INTERFACE_VERSION
        raise Unloadable(
            f"the plug-in was written for version {version} of the interface, and this gateway has version "
            f"{INTERFACE_VERSION}: {'use a newer gateway, or an older plug-in' if newer else 'use a newer plug-in'}"
        )
    if not isinstance(made.name, str) or not made.name or len(made.name) > MAX_NAME or not made.name.isprintable():
        raise Unloadable(
            f"the plug-in has no name: add name = '{_suggested(use)}' to its class, of at most {MAX_NAME} characters"
        )
    if not isinstance(made.version, str) or len(made.version) > MAX_NAME or not (made.version or "0").isprintable():
        raise Unloadable(f"version is no text of at most {MAX_NAME} characters")
    return LoadedPlugin(made, made.name, made.version, _methods(made), {})


def _methods(plugin: Plugin) -> frozenset[str]:
    own = [name for name in METHODS if getattr(type(plugin), name) is not getattr(Plugin, name)]
    wrong = []
    for name in own:
        method = getattr(plugin, name)
        if name in FUNCTIONS and inspect.iscoroutinefunction(method):
            wrong.append(f"{name} is a coroutine function, and has to be a plain one: write def, not async def")
        elif name in COROUTINES and not inspect.iscoroutinefunction(method):
            wrong.append(f"{name} has to be a coroutine function: write async def")
        else:
            try:
                inspect.signature(method).bind(*[None] * METHODS[name])
            except (TypeError, ValueError):
                expected = inspect.signature(getattr(Plugin, name))
                wrong.append(f"{name} has other parameters than ({', '.join(expected.parameters)})")
    if wrong:
        raise Unloadable("; ".join(wrong))
    if not own:
        raise Unloadable(f"the plug-in has none of the methods: {', '.join(METHODS)}")
    return frozenset(own)


def _suggested(use: str) -> str:
    return use.partition(":")[0].partition(".")[0].replace("_", "-")


def _article(made: Any) -> str:
    return "nothing" if made is None else f"a value of the type {type(made).__name__}"


def _text_of(error: BaseException, options: Mapping[str, Any]) -> str:
    text = " ".join(str(error).split())
    for secret in sorted(_texts_in(options), key=len, reverse=True):
        text = text.replace(secret, "***")
    return f"{type(error).__name__}: {text[:_MAX_SHOWN]}" if text else type(error).__name__


def _texts_in(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value] if len(value) >= _HIDDEN_FROM else []
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for each in inside for text in _texts_in(each)]
