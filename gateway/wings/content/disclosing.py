"""Which keys' calls are kept, for their owners, and whose content no wing may hand on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gateway.config import Config
from gateway.pipeline.services import WingDisclosure

from .policy import is_never, of_key
from .settings import ContentSettings


def of_keys(config: Config) -> Callable[[str, str | None], dict[str, Any] | None] | None:
    settings = config.section(ContentSettings)
    return partial(of_key, settings) if settings.keep else None


DISCLOSURE = WingDisclosure(of_keys, lambda config, key: is_never(config.section(ContentSettings), key))
