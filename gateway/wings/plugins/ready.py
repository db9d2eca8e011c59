"""The list of plug-ins in the answer of /readyz."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.config import Config
from gateway.web.ops import WingReadiness

from .settings import loaded


def describe(config: Config) -> Mapping[str, object]:
    found = [{"name": each.name, "version": each.version} for each in loaded(config)]
    return {"plugins": found} if found else {}


READINESS = WingReadiness(describe)
