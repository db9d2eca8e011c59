"""The section `when_above`: from which share of a quota of money on another model serves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from gateway.config.checks import explain
from gateway.config.faults import ConfigError, ConfigFault, format_faults, printable
from gateway.config.model_names import is_pattern
from gateway.config.sections import PERSON_DEFAULTS, ROLE_PREFIX, Config, Price, Section
from gateway.config.sections.keys import folded_people, known_groups
from gateway.config.sections.values import NOT_BOOL, Positive
from gateway.config.wings import WingSection

DEFAULTS = PERSON_DEFAULTS
SECTION_NAME = "when_above"
"""Name of the section, and of the steps in an overlay of the store."""


def _read_share(value: Any) -> Any:
    """`80%` as 0.8."""
    text = value.strip() if isinstance(value, str) else ""
    try:
        return float(text.removesuffix("%")) / 100 if text.endswith("%") else value
    except ValueError:
        return value


class Step(Section):
    """One step: `{share: 80%, use: gpt-4o-mini}`."""

    share: Annotated[float, NOT_BOOL, BeforeValidator(_read_share), Field(gt=0, le=1)]
    """From this part of the quota on, spent and reserved together: more than 0, at most 100%."""
    use: Annotated[str, Field(min_length=1)]
    """The model that serves in place of a dearer one."""
    model: Annotated[str, Field(min_length=1)] = "*"
    """Pattern of the models in whose place it serves; default: all that are dearer."""
    max_prompt_tokens: Positive | None = None
    """Calls with longer prompts keep their model, such as those that do not fit into the cheaper one's context."""


Steps = tuple[Step, ...]


class CheaperSettings(Section):
    """Steps by whose quota they look at."""

    at_run_time: bool = False
    """Whether steps count that the admin API or `gateway when-above` gives while the gateway runs."""
    keys: dict[str, Steps] = Field(default_factory=dict)
    """By the id of a key; defaults: every key without steps of its own."""
    people: Annotated[dict[str, Steps], BeforeValidator(known_groups), AfterValidator(folded_people)] = Field(
        default_factory=dict
    )
    """By person; role:lead: everyone with this role; defaults: everyone else."""
    teams: dict[str, Steps] = Field(default_factory=dict)
    """By team; defaults: every team without steps of its own."""

    @property
    def lists(self) -> Iterator[tuple[tuple[str, str], Steps]]:
        """Every list of steps with its place."""
        for kind, lists in (("keys", self.keys), ("people", self.people), ("teams", self.teams)):
            yield from (((kind, name), steps) for name, steps in lists.items())


def read_steps(values: Any) -> Steps | None:
    """The steps that the store has; None: it has none, or a newer gateway wrote what this one cannot read."""
    try:
        return None if values is None else tuple([Step.model_validate(each) for each in values])
    except (ValueError, TypeError):
        return None


def shown_steps(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """Steps in the form of the configuration file."""
    return [step.model_dump(exclude_defaults=True) for step in steps]


class _Given(Section):
    steps: Steps


def given_steps(values: Any, config: Config) -> Steps:
    """The steps of a request, whose paths are `steps[0].use`. Raises `ConfigError` with every fault."""
    try:
        steps = _Given.model_validate({"steps": values}).steps
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise ConfigError([*dict.fromkeys(explain(detail, _Given) for detail in details)]) from None
    if faults := list(_faults_of_steps(("steps",), steps, config)):
        raise ConfigError(faults)
    return steps


def is_cheaper(one: Price | None, other: Price | None) -> bool:
    """Whether one price is below the other: for neither input nor output more, and for one of them less."""
    if one is None or other is None or one.input is None or other.input is None:
        return False
    ours, theirs = (one.input, one.output or 0), (other.input, other.output or 0)
    return ours != theirs and ours[0] <= theirs[0] and ours[1] <= theirs[1]


def faults_of(config: Config) -> Iterator[ConfigFault]:
    """Faults of steps that never can serve: their model, team or role is not there, they do not rise, or they lead in a
    circle."""
    settings = config.section(CheaperSettings)
    for name in settings.teams:
        if name != DEFAULTS and name not in config.teams:
            yield _fault((SECTION_NAME, "teams", name), "there is no such team in the file")
    for name in settings.people:
        if name.startswith(ROLE_PREFIX) and not any(each.startswith(ROLE_PREFIX) for each in config.people):
            yield _fault(
                (SECTION_NAME, "people", name),
                "the role of a person is kept where people has quotas of a role; add them",
            )
    for place, steps in settings.lists:
        yield from _faults_of_steps((SECTION_NAME, *place), steps, config)


def _faults_of_steps(place: tuple[str, ...], steps: Sequence[Step], config: Config) -> Iterator[ConfigFault]:
    for number, step in enumerate(steps):
        here: tuple[str | int, ...] = (*place, number)
        if is_pattern(step.use) or step.use in config.aliases:
            yield _fault((*here, "use"), "is a pattern or an alias; name one model")
        elif config.model(step.use) is None:
            yield _fault((*here, "use"), f"there is no model {printable(step.use)!r}")
        if fnmatchcase(step.use, step.model) and step.model != "*" and not is_pattern(step.model):
            yield _fault((*here, "use"), "is the model itself; name a cheaper one")
        for earlier in steps[:number]:
            if earlier.model == step.model and earlier.share >= step.share:
                yield _fault((*here, "share"), f"expected more than the {earlier.share:.0%} of the step before it")
                break
            if earlier.use == step.use and earlier.model == step.model:
                yield _fault((*here, "use"), "serves from an earlier step on; leave one of the two out")
                break
            if fnmatchcase(step.use, earlier.model) and step.use != earlier.use and step.model == earlier.use:
                yield _fault((*here, "use"), f"leads back to a model that {printable(earlier.use)!r} serves for")
                break


def warnings_of(config: Config) -> Iterator[ConfigFault]:
    """Steps that never serve: nothing that they could replace is dearer."""
    for place, steps in config.section(CheaperSettings).lists:
        for number, step in enumerate(steps):
            found = config.model(step.use)
            others = [model for name, model in config.models.items() if fnmatchcase(name, step.model)]
            if found is not None and not any(is_cheaper(found.model.price, other.price) for other in others):
                yield _fault(
                    (SECTION_NAME, *place, number, "use"),
                    "never serves: it has no price, or no model in whose place it would serve is dearer",
                )


def _fault(place: tuple[str | int, ...], message: str) -> ConfigFault:
    return ConfigFault(format_faults(place), message)


SECTION = WingSection(SECTION_NAME, CheaperSettings, warnings=warnings_of, faults=faults_of)
