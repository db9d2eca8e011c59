"""No report of units beside tokens spends a quota: it is believed up to a ceiling, as tokens are."""

from __future__ import annotations

import pytest

from gateway import units
from gateway.config import Model, Price, Route
from gateway.config.rates import ROWS
from gateway.formats.ceilings import ADDED_TEXT_TOKENS
from gateway.quota import pricing
from gateway.records import Call, Document, Key, Params, Usage
from gateway.relay import charge
from gateway.relay.charge import SentRequest
from gateway.wings.realtime.accounts import session_usage

BESIDE = [name for name, unit in units.UNITS.items() if unit.part_of is None]
STATED = {"characters", "calls", "tasks", "seconds"}
"""Units that are the request's own, or bounded with the outputs of a task: no answer of a call reports them."""
PRICE = Price.model_validate({name: 1 for name in ROWS if name != "audio_per_minute"})


def sent(stated: units.Counts = ()) -> SentRequest:
    model = Model(routes=(Route(upstream="u"),), price=PRICE)
    params = Params(Document("", {}), "m", output_limit=10, units=stated)
    return SentRequest(Call("r", 0.0, Key("k"), "chat", params, model, label_model="m", arrived=0.0), None, 10)


@pytest.mark.parametrize("name", [name for name in BESIDE if name not in STATED])
def test_a_senseless_count_is_bounded(name: str) -> None:
    report = Usage(1, 1, source="reported", more=((name, 10**12),))
    charged = charge.of_plain(sent(), report, b"{}", "m")
    assert (charged.usage.source, charged.doubts) == ("estimated", (name,))
    cost = pricing.cost_nusd(PRICE, charged.usage)
    assert cost is not None
    assert cost <= 1_002 * 10**9


def test_true_counts_are_believed() -> None:
    for stated, counted in (((), ("web_searches", 400)), ((("audio_ms", 10_000_000),), ("audio_ms", 20_000_000))):
        report = Usage(1, 1, source="reported", more=(counted,))
        assert charge.of_plain(sent(stated), report, b"{}", "m") == charge.Charge(report)


def test_a_response_of_a_session_is_bounded() -> None:
    report = session_usage(Usage(2**50, 2**50, source="reported"))
    assert report.prompt_tokens == ADDED_TEXT_TOKENS
    assert report.completion_tokens == ADDED_TEXT_TOKENS
    assert report.source == "estimated"
    true = Usage(128_000, 32_000, source="reported")
    assert session_usage(true) is true
