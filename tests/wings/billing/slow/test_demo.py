"""The bills of the demo: a month that agrees with the records, and one day that does not, and why."""

from __future__ import annotations

import time
from typing import Any

from gateway.commands.demo_history import PEOPLE, SPARE
from gateway.wings.billing.demo_history import DEARER, ODD_DAY, OTHER_CALLS
from gateway.wings.billing.simulated_vendor import DAY_S
from tests.conftest import StartsProcesses
from tests.flows.gateway_process import eventually
from tests.flows.slow.test_demo import ask, start


def test_one_day_of_the_demo_differs_and_the_page_says_why(process: StartsProcesses) -> None:
    _, found = start(process)
    today = time.strftime("%Y-%m-%d", time.gmtime())
    odd = time.strftime("%Y-%m-%d", time.gmtime(time.time() // DAY_S * DAY_S - ODD_DAY * DAY_S))

    def read() -> Any:
        bills = ask(found, "bills")
        return bills if all(each["read_at"] for each in bills["upstreams"]) else None

    bills = eventually(read, 60)
    assert [(each["upstream"], each["failed"]) for each in bills["upstreams"]] == [("simulator", None), (SPARE, None)]
    assert min(each["bill_usd"] for each in bills["upstreams"]) > 1
    rows = [row for row in bills["data"] if row["day"] != today]
    (differs,) = [row for row in rows if row["difference_usd"]]
    assert (differs["upstream"], differs["day"], differs["model"]) == ("simulator", odd, DEARER)
    causes = {name for name, amount in differs.items() if name.endswith("_usd") and amount}
    assert causes - {"bill_usd", "recorded_usd", "difference_usd"} <= {"other_users_usd", "price_usd"}
    assert differs["other_users_usd"] > 0.1
    used = ask(found, f"usage?group_by=model,upstream&since={odd}&until={odd}")["data"]
    (ours,) = [row for row in used if (row["model"], row["upstream"]) == (DEARER, "simulator")]
    assert differs["recorded_requests"] == ours["requests"]
    assert differs["bill_requests"] == ours["requests"] - ours["errors"] + OTHER_CALLS, "no failed call is billed"
    assert not [row for row in bills["data"] if row["unexplained_usd"]]
    owners = {person.owner for person in PEOPLE.values() if person.owner}
    since = time.strftime("%Y-%m-%d", time.gmtime(time.time() - 30 * DAY_S))
    assert {row["person"] for row in ask(found, f"usage?group_by=person&since={since}")["data"]} >= owners
