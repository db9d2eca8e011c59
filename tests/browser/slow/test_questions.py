"""Each of the questions in tests/browser/questions.py is answered in the page, within three clicks."""

from __future__ import annotations

import pytest

from tests.browser.chromium import Page
from tests.browser.questions import QUESTIONS, Question, walk
from tests.conftest import ScriptedUpstream
from tests.fakes.scripted import ok_json
from tests.flows.gateway_process import ADMIN_TOKEN, Gateway, secret


@pytest.fixture
def gateway(either: Gateway) -> Gateway:
    """The same answers on each of the stores."""
    return either


@pytest.fixture(autouse=True)
def answering(upstream: ScriptedUpstream) -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1}
    upstream.answer_with(always=ok_json({"model": "m", "choices": [], "usage": usage}))


@pytest.mark.parametrize(
    "question",
    [pytest.param(each, id=each.text, marks=[pytest.mark.changes] * each.is_call) for each in QUESTIONS],
)
def test_the_answer_is_at_most_three_clicks_away(page: Page, gateway: Gateway, question: Question) -> None:
    page.open(token=secret("alice") if question.person == "member" else ADMIN_TOKEN)
    page.see("main table tbody tr[data-name]")
    walk(page, question, gateway)
    page.see(question.where, question.answer(gateway))
