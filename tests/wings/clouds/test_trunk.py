"""The trunk has no line about a cloud as an upstream: its hosts, errors, headers and prices are in the wing."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tests.test_floors import MODULES
from tests.test_wings import wing_of

CLOUDS = re.compile(r"amazonaws|api\.aws|amzn|bedrock|azure|apim|\bx-ms-|vertex|googleapis|aiplatform", re.IGNORECASE)

OF_CLIENTS = "AzureOpenAI's paths are forms of OpenAI's; the wings realtime and stored have them, too"
OF_ANY_UPSTREAM = "resellers hand on what clouds send"
A_SOURCE = "prose: one of the sources of a rule for all"

EXCEPTIONS: Mapping[str, tuple[int, str]] = {
    "formats.table": (10, OF_CLIENTS),
    "web.cors": (2, OF_CLIENTS),
    "web.endpoints": (4, OF_CLIENTS),
    "web.middleware": (2, OF_CLIENTS),
    "web.openapi.document": (6, OF_CLIENTS),
    "api.auth": (1, "where clients put their key"),
    "config.price_table": (1, "Gemini's own API, as all vendors in the table"),
    "config.sections.upstreams": (1, "Gemini's own API, as all vendors in the table"),
    "config.probable_mistakes": (1, "a reference to a manager of secrets, as other programs write it"),
    "formats.gemini.generate": (1, "the type of Gemini's own errors"),
    "formats.gemini.reader": (1, A_SOURCE),
    "formats.openai.reader": (1, OF_ANY_UPSTREAM),
    "formats.ceilings": (1, A_SOURCE),
    "formats.events": (1, OF_ANY_UPSTREAM),
    "upstream.error_shapes": (3, OF_ANY_UPSTREAM),
    "upstream.learned_limits": (1, A_SOURCE),
    "upstream.refusal": (1, OF_ANY_UPSTREAM),
}
"""The modules of the trunk with such lines: how many at most, and why. A number may only fall."""


def found_in(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """The lines of each module that are about clouds."""
    found = {name: [line for line in source.splitlines() if CLOUDS.search(line)] for name, source in sources.items()}
    return {name: lines for name, lines in found.items() if lines}


def test_the_trunk_has_no_line_about_a_cloud_as_an_upstream() -> None:
    trunk = {name.removeprefix("gateway."): source for name, source in MODULES.items() if wing_of(name) is None}
    found = found_in(trunk)
    more = {name: lines for name, lines in found.items() if len(lines) > EXCEPTIONS.get(name, (0, ""))[0]}
    assert more == {}, "move it to gateway/wings/clouds (docs/architecture.md, Wings)"
    fewer = {
        name: len(found.get(name, ())) for name, (most, _) in EXCEPTIONS.items() if len(found.get(name, ())) < most
    }
    assert fewer == {}, "lower these exceptions, or take them away"


def test_the_rule_itself() -> None:
    source = 'HOST = "x.openai.azure.com"\nx = 1\n# Vertex AI\nname = "X-Ms-Region"\nmax_ms = 2\n'
    assert found_in({"a": source, "b": "x = 1"}) == {
        "a": ['HOST = "x.openai.azure.com"', "# Vertex AI", 'name = "X-Ms-Region"']
    }
