"""`hedge_after`, a setting of models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from gateway.config.faults import ConfigFault, format_faults
from gateway.config.quantities import read_duration_s
from gateway.config.sections import Config, Model, ModelSettings, Section
from gateway.config.sections.values import SPAN_EXAMPLES, or_else, read_by
from gateway.config.wings import WingSection


def _read_hedge_after(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(_HEDGE_AFTER)
    if isinstance(value, str) and value.strip().lower() == "p95":
        return "p95"
    return value


_HEDGE_AFTER = f"expected p95, or a time greater than 0 {SPAN_EXAMPLES}"
HedgeAfter = Annotated[
    Literal["p95"] | Annotated[float, Field(gt=0, allow_inf_nan=False), read_by(read_duration_s)],
    or_else(_HEDGE_AFTER),
    BeforeValidator(_read_hedge_after),
]
"""`p95`, or seconds."""


class HedgeSettings(Section):
    hedge_after: HedgeAfter | None = None
    """Try a second route beside the first when no byte has come for this time: a time such as 2s, or p95 of the times \
lately. Both may be billed. Default: never."""


def hedge_after(model: Model | ModelSettings) -> float | str | None:
    """The setting of this model."""
    return model.hedge_after if isinstance(model, HedgeSettings) else None


def _hedges_of_nothing(config: Config) -> Iterator[ConfigFault]:
    for name, model in config.models.items():
        if hedge_after(model) in (None, hedge_after(config.defaults.models)):
            continue
        why = None
        if len(model.routes) < 2:
            why = "it needs a second route"
        elif model.sticky is not None:
            why = "calls of a sticky model have one place"
        elif model.max_attempts < 2:
            why = "max_attempts allows one attempt alone"
        if why is not None:
            yield ConfigFault(format_faults(("models", name, "hedge_after")), f"has no effect: {why}")


SETTING = WingSection("models", HedgeSettings, warnings=_hedges_of_nothing)
