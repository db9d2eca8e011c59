"""Values of any type in any place of a client's request: it is read and translated, or refused, and nothing else is
raised: an exception would be a 500, and its traceback in the log."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.api import file_ids
from gateway.api.acting_tools import acts
from gateway.errors import GatewayError
from gateway.formats.table import FORMATS, read
from tests.fakes.good_answers import FORMS
from tests.wings.translate import translated
from tests.wings.translate.translated import GOLDEN

from .test_strange_answers import raised_by, with_strange

pytestmark = pytest.mark.shortened

ENDPOINTS = {"responses": "responses", "messages": "messages", "anthropic": "chat"}
"""The clients' formats by the ways of translations."""


def raised_of(endpoint: Any, request: Any, way: str | None = None) -> str:
    def ask() -> None:
        params = read(endpoint, json.dumps(request).encode())
        acts(params.document)
        list(file_ids.named_files(params.document))
        if way is not None:
            translated.asked(way, request)

    return raised_by(ask, (GatewayError,))


@pytest.mark.parametrize("name", GOLDEN)
def test_a_request_that_is_translated(name: str) -> None:
    way, request = name.partition("/")[0], GOLDEN[name]["request"]
    found = {place: raised_of(ENDPOINTS[way], strange, way) for place, strange in with_strange(request)}
    assert {place: error for place, error in found.items() if error} == {}


@pytest.mark.parametrize("name", [name for name in FORMS if FORMATS[name].read_form is None])
def test_a_request_that_is_passed_on(name: Any) -> None:
    _, request = FORMS[name].request("m", "u", is_streamed=False)
    found = {place: raised_of(name, strange) for place, strange in with_strange(request)}
    assert {place: error for place, error in found.items() if error} == {}
