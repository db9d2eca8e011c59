"""Files of what is shown: ISO times, units, ids, refusals; and times in UTC or local time by one switch."""

from __future__ import annotations

import csv
import io
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from tests.browser.axe import check
from tests.browser.chromium import Page
from tests.flows.gateway_process import ADMIN_TOKEN, Gateway, eventually

FIRST = "main table tbody tr:first-child th"


def saved(page: Page, folder: Path, name: str, button: str = "main .csv") -> list[dict[str, str]]:
    """The rows of the file behind a button."""
    page.driver.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})
    page.click(button)
    file = folder / f"{name}.csv"
    eventually(file.exists)
    return list(csv.DictReader(io.StringIO(file.read_text())))


def test_the_file_of_calls_and_refusals_has_both(admin: Page, gateway: Gateway, tmp_path: Path) -> None:
    calls = gateway.admin("calls", limit="1000").json["data"]
    refusals = gateway.admin("refusals", limit="1000").json["data"]
    admin.go("calls")
    admin.see(FIRST)
    rows = saved(admin, tmp_path, "newest-calls-and-refusals")
    assert [row["id"] for row in rows if row["kind"] == "call"] == [each["id"] for each in calls]
    assert [row["id"] for row in rows if row["kind"] == "refusal"] == [each["id"] for each in refusals]
    by_id = {row["id"]: row for row in rows}
    for each in refusals:
        row = by_id[each["id"]]
        assert datetime.fromisoformat(row["time"]).timestamp() == pytest.approx(each["time"], abs=0.001)
        assert (row["code"], row["limit"], row["status"]) == (each["code"], each["limit"] or "", str(each["status"]))
    for each in calls:
        row = by_id[each["id"]]
        assert (row["prompt_tokens"], row["completion_tokens"]) == (
            str(each["prompt_tokens"]), str(each["completion_tokens"]),
        )  # fmt: skip


def test_the_file_of_refusals_alone(admin: Page, gateway: Gateway, tmp_path: Path) -> None:
    admin.go("calls?outcome=refused&key=bob")
    admin.see(FIRST)
    rows = saved(admin, tmp_path, "newest-calls-and-refusals")
    known = gateway.admin("refusals", key="bob").json["data"]
    assert [(row["id"], row["message"]) for row in rows] == [(each["id"], each["message"]) for each in known]


def test_the_file_of_quotas_has_units_and_moments(admin: Page, gateway: Gateway, tmp_path: Path) -> None:
    admin.go("quotas")
    admin.see("main table tbody tr[data-name]")
    rows = [row for row in saved(admin, tmp_path, "keys") if row["unit"]]
    windows = [each for each in gateway.admin("quotas").json["data"] if each["key"]]
    assert len(rows) == len(windows)
    for row in rows:
        (window,) = [
            each
            for each in windows
            if each["key"] == row["key"] and (each["unit"], each["limit"]) == (row["unit"], float(row["limit_amount"]))
        ]
        assert float(row["used"]) == window["used"]
        assert bool(row["reset_at"]) == bool(window["reset_at"])
        if row["reset_at"]:
            assert abs((datetime.fromisoformat(row["reset_at"]) - datetime.now(UTC)).total_seconds()) < 32 * 86_400


@pytest.mark.parametrize(("zone", "name"), [("Asia/Tokyo", "UTC+9"), ("America/St_Johns", "UTC\u2212")])
def test_times_are_utc_or_local_by_one_switch(admin: Page, gateway: Gateway, zone: str, name: str) -> None:
    admin.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": zone})
    try:
        admin.open("calls", ADMIN_TOKEN)
        admin.see("#zone", "UTC")
        (newest,) = gateway.admin("calls", limit="1").json["data"]
        shown = datetime.fromtimestamp(newest["time"], UTC)
        row = f"tr[data-name='{newest['id']}'] th"
        admin.see(row, shown.strftime("%H:%M:%S"))
        admin.click("#zone")
        admin.see("#zone", name)
        admin.see(row, shown.astimezone(ZoneInfo(zone)).strftime("%H:%M:%S"))
        admin.see("label.until", name)
        admin.click(f"{row} a")
        admin.see("dialog .facts", shown.astimezone(ZoneInfo(zone)).strftime("%Y-%m-%d %H:%M:%S"))
        admin.driver.back()
        admin.gone("dialog")
        # A moment in a field is local, that of the address UTC: a link shows the same in every zone.
        admin.open(f"calls?from={shown:%Y-%m-%dT%H:%M}")
        field = admin.attribute("value", "input[name=from]")
        assert field == shown.astimezone(ZoneInfo(zone)).strftime("%Y-%m-%dT%H:%M")
        admin.see(row)
        admin.prefer("dark", is_still=True)
        check(admin, "local time")
    finally:
        admin.driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": ""})


def test_refusals_name_the_key_and_the_model_of_the_log(admin: Page, gateway: Gateway) -> None:
    admin.go("calls")
    rows = admin.until(lambda: admin.rows("#refused table"))
    known = gateway.admin("refusals", since="1d", limit="1000").json["data"]
    assert sum(int(row["Times"]) for row in rows) == len(known)
    assert {row["Key"] for row in rows} == {each["key"] or "no known key" for each in known}
    admin.click("#refused [data-reason=insufficient_quota] a")
    admin.until(lambda: {row["Outcome"].split()[-1] for row in admin.rows("main table")} == {"insufficient_quota"})
