"""The paths of clouds: errors on those of Vertex AI are in the words of the publisher's own API, as its SDK reads them,
and on those of Bedrock in its own."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gateway.formats.format import Format
from gateway.formats.table import FORMATS
from gateway.records import Endpoint
from gateway.web.middleware import WingPaths

from .invoke_model import INVOKE

PUBLISHERS: Mapping[str, Endpoint] = {"google": "generate_content", "anthropic": "messages"}
_PUBLISHER = re.compile(rf"/v1(?:beta1)?/(?:projects/[^/]+/locations/[^/]+/)?publishers/({'|'.join(PUBLISHERS)})/")


def _format_of(path: str) -> Format | None:
    if path.startswith("/model/"):
        return INVOKE
    found = _PUBLISHER.match(path)
    return FORMATS[PUBLISHERS[found[1]]] if found else None


PATHS = WingPaths(_format_of)
