"""The section `when_above`: what is refused with its place, and what has a warning."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from gateway.config import ConfigError, build
from gateway.config.probable_mistakes import warnings_of
from gateway.wings.cheaper.check import describe
from gateway.wings.cheaper.settings import CheaperSettings


def values(lists: dict[str, Any], **more: Any) -> dict[str, Any]:
    def model(price: float) -> dict[str, Any]:
        return {
            "routes": [{"upstream": "up"}], "max_output_tokens": 9, "price": {"input": price, "output": price},
        }  # fmt: skip

    return {
        "upstreams": {"up": {"base_url": "https://api.example.org/v1", "api_key": "sk-1"}},
        "models": {"dear": model(9), "mid": model(5), "mini": model(1), "any-*": model(3)},
        "aliases": {"best": "dear"},
        "teams": {"red": {}},
        "when_above": lists,
        **more,
    }


def steps(*each: Any) -> dict[str, Any]:
    return {"keys": {"defaults": [*each]}}


STEP = {"share": "80%", "use": "mini"}


@pytest.mark.parametrize(("given", "share"), [("80%", 0.8), ("100 %", 1.0), (0.5, 0.5), ("0.5%", 0.005)])
def test_a_share_is_a_percentage_or_a_number(given: Any, share: float) -> None:
    made = build(values(steps({"share": given, "use": "mini"}))).section(CheaperSettings)
    assert made.keys["defaults"][0].share == pytest.approx(share)


@pytest.mark.parametrize("share", ["0%", "101%", 0, 1.01, "-1%", "much", True, "%", "nan%"])
def test_a_share_is_above_zero_and_at_most_all(share: Any) -> None:
    with pytest.raises(ConfigError, match=r"when_above\.keys\.defaults\[0\]\.share"):
        build(values(steps({"share": share, "use": "mini"})))


@pytest.mark.parametrize(
    ("lists", "fault"),
    [
        (steps({"share": "80%", "use": "gone"}), "when_above.keys.defaults[0].use: there is no model 'gone'"),
        (steps({"share": "80%", "use": "best"}), "when_above.keys.defaults[0].use: is a pattern or an alias"),
        (steps({"share": "80%", "use": "any-*"}), "when_above.keys.defaults[0].use: is a pattern or an alias"),
        (steps({**STEP, "model": "mini"}), "when_above.keys.defaults[0].use: is the model itself"),
        (steps(STEP, {"share": "80%", "use": "mid"}), "when_above.keys.defaults[1].share: expected more than the 80%"),
        (steps({"share": "90%", "use": "mid"}, STEP), "when_above.keys.defaults[1].share: expected more than the 90%"),
        (steps(STEP, {"share": "90%", "use": "mini"}), "when_above.keys.defaults[1].use: serves from an earlier step"),
        (
            steps({**STEP, "model": "dear"}, {"share": "90%", "use": "dear", "model": "mini"}),
            "when_above.keys.defaults[1].use: leads back to a model that 'mini' serves for",
        ),
        ({"teams": {"blue": [STEP]}}, "when_above.teams.blue: there is no such team"),
        ({"people": {"role:lead": [STEP]}}, 'when_above.people."role:lead": the role of a person is kept where'),
        ({"people": {"role:chief": [STEP]}}, "when_above.people"),
        ({"machines": {"a": [STEP]}}, "when_above.machines"),
    ],
)
def test_what_cannot_work_is_refused_with_its_place(lists: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError) as refused:
        build(values(lists))
    assert [str(each).startswith(fault) for each in refused.value.faults] == [True], refused.value.faults


def test_what_works_is_taken() -> None:
    lists = {
        "keys": {"defaults": [{"share": "70%", "use": "mid"}, {"share": "90%", "use": "mini"}], "made-later": []},
        "people": {"ann@example.org": [STEP], "role:lead": [], "defaults": [STEP]},
        "teams": {"red": [{**STEP, "model": "dear"}, {**STEP, "model": "mid"}], "defaults": [{**STEP, "use": "any-1"}]},
    }
    made = build(values(lists, people={"role:lead": {"quotas": ["1 USD/day"]}}))
    assert describe(made) == "any-1, mid, mini when money gets short"
    assert describe(build(values({}))) == "none: when_above is not set"


def test_a_step_that_never_serves_has_a_warning() -> None:
    made = build(values(steps({"share": "80%", "use": "dear"}, {**STEP, "model": "gpt-*"})))
    found = [str(each) for each in warnings_of(made, datetime.now(UTC)) if "when_above" in str(each)]
    assert [each.partition(":")[0] for each in found] == [
        "when_above.keys.defaults[0].use", "when_above.keys.defaults[1].use",
    ]  # fmt: skip
    assert "never serves" in found[0]
