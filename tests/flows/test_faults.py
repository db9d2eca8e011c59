"""Every row of the fault catalogue through a whole gateway: what a client sees, and that the next call is good.

All rows play at once, each on an upstream of its own, when the first test asks; each test then looks at its own. What a
client must see stands in faults_table.py. Beside that, of every row: it never hangs; an answer is whole, or visibly an
error; nothing of ours is shown; the next call on the same upstream is good, on the same client connection.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.amounts import amount
from tests.conftest import StartsGateways
from tests.fakes.faults import FAULTS, KINDS, MEDIA, POISON, Ask, Fault, FaultyUpstreams, Kind

from .client import Answer, Raw
from .faults_table import OF_FORMAT, TABLE, Expected, Passed, Whole, error_at_the_end
from .gateway_process import UPSTREAM_KEY, Gateway, eventually, key, model, secret, settings

pytestmark = pytest.mark.shortened
REAL_MODEL = "up-model-v2-0914"
AT_ONCE = 32
PATIENT: dict[str, float] = {"connect_s": 5, "head_s": 10, "idle_s": 10, "total_s": 60}
"""For most rows: more than they need, so that a busy machine is no fault, and longer than a client of the tests waits
where the wrong limit would have to end it."""
HASTY = PATIENT | {"connect_s": 2, "head_s": 2, "idle_s": 2}
"""For rows that end in one of these limits."""
ENDLESS = PATIENT | {"total_s": 1.5}
"""For rows that only this limit can end."""

ATTEMPTS = {
    "refused": 3, "used again, closes": 2, "used again, resets": 2, "503 with Retry-After 0": 3,
    "503 with a past date": 3,
}  # fmt: skip
"""The number of attempts of a call. A sent request is not sent again, unless the upstream certainly has not read it or
asks for another attempt."""
STATUSES = {
    "upstream_timeout": 504, "upstream_rate_limited": 429, "some_code": 400, "invalid_prompt": 400,
    "invalid_request_error": 400,
}  # fmt: skip
"""What a stream with an error event would have had as its status: 502 where nothing stands here."""


def played(number: int, fault: Fault) -> tuple[Kind, ...]:
    """Of which kinds of requests this row is played: all, except that streams of images and of transcriptions, which
    are scanned alike, take turns. `make test`, with fewer examples of everything, plays one kind of each row, and
    another in the next row."""
    skipped = Kind(MEDIA[number % len(MEDIA)], is_streamed=True)
    kinds = tuple([kind for kind in fault.kinds if kind != skipped])
    return amount(kinds, (kinds[number % len(kinds)],))


ROWS = {fault: played(number, fault) for number, fault in enumerate(FAULTS)}
CASES = [(fault, kind) for fault, kinds in ROWS.items() for kind in kinds]


@dataclass
class Scenario:
    """What a client has asked and seen: perhaps a good answer, then what the row is about, then a good answer."""

    asks: list[Ask] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    @property
    def ask(self) -> Ask:
        return self.asks[-2]

    @property
    def answer(self) -> Answer:
        return self.answers[-2]

    @property
    def next_ask(self) -> Ask:
        return self.asks[-1]

    @property
    def next_answer(self) -> Answer:
        return self.answers[-1]


def expected(fault: Fault, kind: Kind) -> tuple[Expected, ...]:
    """What a client may see: mostly one thing."""
    row = OF_FORMAT.get(kind.endpoint, {}).get(fault.name) or TABLE[fault.name]
    found = row[kind.is_streamed]
    assert found is not None
    return found if isinstance(found, tuple) else (found,)


def limits(fault: Fault, kind: Kind) -> dict[str, float]:
    """The time limits of this upstream."""
    if fault.name in ("an endless stream", "blank lines for ever"):
        return ENDLESS
    codes = [one.code for one in expected(fault, kind) if not isinstance(one, Whole | Passed)]
    return HASTY if "upstream_timeout" in codes or fault.name.startswith("stalled") else PATIENT


def name_of(fault: Fault, kind: Kind) -> str:
    return f"{FAULTS.index(fault)}-{kind}"


class Run:
    """All rows at once. Plain answers and streams have a gateway each, because each row has an upstream of its own."""

    def __init__(
        self, gateways: Mapping[bool, Gateway], faulty_upstreams: FaultyUpstreams, pool: ThreadPoolExecutor
    ) -> None:
        self.gateways = gateways
        self._faulty_upstreams = faulty_upstreams
        self._scenarios = {(fault.name, kind): pool.submit(self._script, fault, kind) for fault, kind in CASES}

    def gateway(self, kind: Kind) -> Gateway:
        return self.gateways[kind.is_streamed]

    def scenario(self, fault: Fault, kind: Kind) -> Scenario:
        return self._scenarios[fault.name, kind].result()

    def _script(self, fault: Fault, kind: Kind) -> Scenario:
        name, scenario = name_of(fault, kind), Scenario()
        with ExitStack() as stack:
            client = stack.enter_context(self.gateway(kind).connect())
            for when in ("before", "now", "after") if fault.is_primed else ("now", "after"):
                if when == "after":
                    self._faulty_upstreams.heal(fault, kind)
                scenario.asks.append(Ask(kind, f"{when} {name}"))
                scenario.answers.append(call(client, scenario.asks[-1], name))
                if scenario.answers[-1].headers.get("connection") == "close":  # a 413
                    client = stack.enter_context(self.gateway(kind).connect())
        if fault.is_primed:
            Whole().check(scenario.asks[0], scenario.answers[0])
        return scenario


def call(client: Raw, ask: Ask, model: str) -> Answer:
    """One call, whose answer has to have true framing."""
    form = ask.kind.form
    path, body, content_type = form.written(model, ask.user, is_streamed=ask.kind.is_streamed)
    client.post(path, body, secret(str(ask.kind)), kind=content_type)
    answer = client.read_head()
    if "content-length" in answer.headers:
        answer.body = client.read(int(answer.headers["content-length"]))
    else:
        answer.body = client.read_chunks()
    assert not client.held
    return answer


@pytest.fixture(scope="module")
def run(start_shared_gateway: StartsGateways) -> Iterator[Run]:
    with FaultyUpstreams() as faulty_upstreams, ThreadPoolExecutor(AT_ONCE) as pool:
        yield Run(
            {streamed: start_shared_gateway(config_of(streamed, faulty_upstreams)) for streamed in (False, True)},
            faulty_upstreams,
            pool,
        )


def config_of(streamed: bool, faulty_upstreams: FaultyUpstreams) -> dict[str, Any]:
    """Of a gateway with an upstream and a model for each row of these kinds."""
    upstreams, models = {}, {}
    for fault, kind in CASES:
        if kind.is_streamed == streamed:
            name = name_of(fault, kind)
            upstreams[name] = {
                "base_url": faulty_upstreams.url(fault, kind),
                "api_key": UPSTREAM_KEY,
                "timeouts": limits(fault, kind),
                "capabilities": {"messages": True, "generate_content": True},
            }
            models[name] = model(kind.endpoint, routes=[{"upstream": name, "model": REAL_MODEL}])
    quotas = [{"requests": 100_000, "per": "month"}, {"tokens": 10_000_000, "per": "month"}]
    keys = [key(str(kind), quotas=quotas, max_parallel=1000) for kind in KINDS if kind.is_streamed == streamed]
    config = settings("http://127.0.0.1:1/v1", keys=keys, server={"max_response_bytes": 200_000})
    return config | {"upstreams": upstreams, "models": models}


def test_table_has_every_row() -> None:
    assert {name for rows in OF_FORMAT.values() for name in rows} <= set(TABLE)
    assert set(TABLE) == {fault.name for fault in FAULTS}
    assert len(TABLE) == len(FAULTS)
    for fault in FAULTS:
        streams = {kind.is_streamed for kind in fault.kinds}
        assert [False in streams, True in streams] == [one is not None for one in TABLE[fault.name]], fault.name


@pytest.mark.parametrize("fault", ROWS, ids=str)
def test_client_sees_the_truth_and_the_next_call_is_good(run: Run, fault: Fault) -> None:
    for kind in ROWS[fault]:
        try:
            check(run, fault, kind)
        except Exception as error:
            error.add_note(f"kind of request: {kind}")
            raise


def check(run: Run, fault: Fault, kind: Kind) -> None:
    scenario = run.scenario(fault, kind)
    port = urlsplit(run.gateway(kind).config["upstreams"][name_of(fault, kind)]["base_url"]).port
    for answer in (scenario.answer, scenario.next_answer):
        shown = repr(answer.header_lines) + answer.body.decode(errors="replace")
        assert not [each for each in (UPSTREAM_KEY, REAL_MODEL, "127.0.0.1", POISON, "up-1") if each in shown]
        assert not re.search(rf":{port}\b", shown)
        assert answer.id.startswith("req_")
        assert answer.headers["x-gateway-upstream"] == name_of(fault, kind)
    *others, last = expected(fault, kind)
    if not any(is_as(other, scenario) for other in others):
        last.check(scenario.ask, scenario.answer)
    Whole().check(scenario.next_ask, scenario.next_answer)
    if fault.stage != "connection":  # there it depends on who was faster
        assert scenario.answer.headers["x-gateway-attempts"] == str(ATTEMPTS.get(fault.name, 1))


def is_as(one: Expected, scenario: Scenario) -> bool:
    try:
        one.check(scenario.ask, scenario.answer)
    except AssertionError:
        return False
    return True


def is_free(fault: Fault) -> bool:
    """Whether a call with an error status cannot have cost anything: not sent, or refused by a whole answer."""
    return FREE.fullmatch(fault.name) is not None and fault.name not in NOT_FREE


FREE = re.compile(
    r"refused|never accepted|[345]\d\d.*|status [69].*|a page with 50\d|.* in a 200.*|.* as the first event"
    r"|an error as JSON for a stream"
)
NOT_FREE = {
    "408", "504", "504 with Retry-After", "429 cut in its body", "500 stalled in its body",
    "an error in a 200 beside an answer",
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_sums_agree_after_all_faults(run: Run, kind: Kind) -> None:
    """One record and one line a call, nothing reserved; `none` only where nothing can have been generated."""
    faults = [fault for fault, kinds in ROWS.items() if kind in kinds]
    scenarios = [run.scenario(fault, kind) for fault in faults]
    ids = [answer.id for scenario in scenarios for answer in scenario.answers]
    records = {record["id"]: record for record in run.gateway(kind).calls(str(kind), limit=2 * len(ids))}
    assert len(ids) == len(records)
    assert set(ids) == set(records)
    for fault, scenario in zip(faults, scenarios, strict=True):
        record, next_record = records[scenario.answer.id], records[scenario.next_answer.id]
        if scenario.answer.status != 200:
            assert (record["status"], record["ended"]) == (scenario.answer.status, "error")
            tokens_of = record["usage_source"], record["prompt_tokens"], record["completion_tokens"]
            if fault.stage == "connection":  # it depends on who was faster whether the request was sent
                assert tokens_of == ("none", 0, 0) or tokens_of[0] == "estimated", fault.name
            else:
                assert tokens_of == ("none", 0, 0) if is_free(fault) else tokens_of[0] != "none", fault.name
        elif kind.is_streamed and (code := error_at_the_end(scenario.ask, scenario.answer)):
            received = (record["status"], record["ended"], record["truncated"])
            assert received == (STATUSES.get(code, 502), "error", True), fault.name
        else:
            assert (record["status"], record["ended"], record["truncated"]) == (200, "done", False)
        assert (next_record["status"], next_record["ended"], next_record["usage_source"]) == (200, "done", "reported")
        assert (next_record["prompt_tokens"], next_record["completion_tokens"]) == (1, 3)
    statuses = {number: record["status"] for number, record in records.items()}
    eventually(lambda: statuses.items() <= {(line.get("id"), line["status"]) for line in run.gateway(kind).lines()})
    tokens = sum(record["prompt_tokens"] + record["completion_tokens"] for record in records.values())
    quotas = run.gateway(kind).get("/v1/key", key=str(kind)).json["quotas"]
    held = {quota["unit"]: (quota["used"], quota["reserved"]) for quota in quotas}
    assert held == {"requests": (len(records), 0), "tokens": (tokens, 0), "parallel": (0, 0)}


def test_gateway_is_quiet_after_all_of_it(run: Run) -> None:
    """No call is in flight (the scrape counts itself), and the log has no traceback."""
    for fault, kind in CASES:
        run.scenario(fault, kind)
    for gateway in run.gateways.values():
        eventually(
            lambda gateway=gateway: (  # type: ignore[misc]
                b"\ngateway_in_flight_requests 0.0\n" in gateway.get("/metrics", key=None).body
            )
        )
        gateway.check_logs()
        assert len(gateway.workers()) == 1
