"""Numbers of the pages about one key, team, model and upstream, of the overview, the lists and the dialogs.

Each is compared with the admin API, on both stores. tests/browser/numbers.py names the tests of other files, too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from tests.browser.chromium import ESCAPE, Page
from tests.browser.conftest import ago
from tests.browser.numbers import FREE, PAGES
from tests.flows.gateway_process import ADMIN_TOKEN, COMPLETIONS, Gateway, secret

NOTHING = "\u2013"
SUMS = {
    "Requests": "requests", "Prompt": "prompt_tokens", "Cached": "cached_tokens", "Completion": "completion_tokens",
    "Reasoning": "reasoning_tokens", "Cost": "cost_usd", "Failed": "errors", "Estimated": "estimated_percent",
}  # fmt: skip
TIMES = {
    "Requests": "requests", "First token p50": "first_token_p50_s", "First token p95": "first_token_p95_s",
    "First token p99": "first_token_p99_s", "Took p50": "duration_p50_s", "Took p95": "duration_p95_s",
    "Took p99": "duration_p99_s",
    "Tokens/s p5": "tokens_per_s_p5", "Tokens/s p50": "tokens_per_s_p50",
    "Failed": "errors", "Failed attempts": "failed_attempts",
}  # fmt: skip
BESIDE_TILES = ("prompt_tokens", "completion_tokens", "cost_usd", "estimated_tokens")
FIGURES = ("requests", "errors", *BESIDE_TILES)
SPLITS = {
    "key": ("model", "upstream"), "team": ("key", "model", "upstream"), "model": ("key", "team", "upstream"),
    "upstream": ("model", "key", "team"),
}  # fmt: skip
SUBJECTS = {"key": "alice", "team": "crew", "model": COMPLETIONS, "upstream": "main"}

Numbers = dict[str, dict[str, float | None]]


@pytest.fixture
def gateway(either: Gateway) -> Gateway:
    """Numbers are compared on each of the stores."""
    return either


def shown(page: Page, css: str, title: str, columns: Mapping[str, str]) -> Numbers:
    """The numbers of a table, by what its rows are called."""
    page.run("for (const each of document.querySelectorAll('details.as-table')) each.open = true")

    def number(text: str) -> float | None:
        return None if text in (NOTHING, "unknown") else float(text)

    return {
        "" if row[title] == NOTHING else row[title]: {name: number(row[shown_as]) for shown_as, name in columns.items()}
        for row in page.rows(css)
    }


def known(rows: Iterable[Mapping[str, Any]], group: str, columns: Mapping[str, str]) -> Numbers:
    return {row[group]: {name: row[name] for name in columns.values()} for row in rows}


def same(page: Page, css: str, group: str, columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> None:
    """A table shows these rows of the API, every number of them."""
    expected = known(rows, group, columns)
    title = group[0].upper() + group[1:]
    page.until(lambda: shown(page, css, title, columns) == expected)


def figures(page: Page, within: str, whole: Mapping[str, Any], names: Sequence[str] = FIGURES) -> None:
    """The line of large numbers: each exactly, and the small ones below them in words."""

    def exact(name: str) -> float:
        value = page.attribute("data-value", f'{within} [data-sum="{name}"] b') or "nan"
        return round(float("nan" if value == "unknown" else value), 9)

    page.until(lambda: {name: exact(name) for name in names} == {name: whole[name] for name in names})
    assert {each.get_attribute("data-sum") for each in page.all(f"{within} [data-sum]")} == set(names)
    small = {name: page.text(f'{within} [data-sum="{name}"] small') for name in names if name != "requests"}
    assert small["prompt_tokens"] == f"{whole['cached_tokens']:,} cached"
    assert small["completion_tokens"] == f"{whole['reasoning_tokens']:,} reasoning"
    if "errors" in names:
        assert small["errors"] == percent(whole["errors"], whole["requests"])
    unpriced = whole["unpriced"]
    plural = "" if unpriced == 1 else "s"
    assert small["cost_usd"] == (f"and {unpriced} request{plural} unknown" if unpriced else "all requests priced")
    assert page.text(f'{within} [data-sum="estimated_tokens"] b') == percent(
        whole["estimated_tokens"], whole["total_tokens"]
    )


def percent(part: float, whole: float) -> str:
    """As the dashboard writes a share."""
    share = 100 * part / whole if whole else 0
    if share == 0:
        return "0 %"
    if share < 0.1:
        return "< 0.1 %"
    return f"{share:.1f} %" if share < 10 else f"{math.floor(share + 0.5)} %"  # JavaScript rounds halves up


def latency(gateway: Gateway, groups: str, narrowed: Mapping[str, str]) -> list[dict[str, Any]]:
    """Rows of the report of latency: by these groups, and only those of this subject."""
    report_groups = [name for name in narrowed if name in ("model", "upstream")]
    owner = {name: value for name, value in narrowed.items() if name not in report_groups}
    wanted = ",".join(dict.fromkeys([*filter(None, groups.split(",")), *report_groups])) or ","
    rows = gateway.admin("latency", group_by=wanted, since=ago(29), **owner).json["data"]
    return [row for row in rows if all(row[name] == narrowed[name] for name in report_groups)]


@pytest.mark.parametrize("group", SUBJECTS)
def test_the_page_of_one_has_the_numbers_of_the_reports(admin: Page, gateway: Gateway, group: str) -> None:
    narrowed = {group: SUBJECTS[group]}
    admin.go(f"{group}s/{SUBJECTS[group]}")
    (whole,) = gateway.usage(group_by="", since=ago(29), **narrowed)
    figures(admin, "dialog", whole)
    before = gateway.usage(group_by="", since=ago(59), until=ago(31), **narrowed) or [{"requests": 0}]
    assert admin.attribute("data-compared", "dialog [data-compared]") == str(before[0]["requests"])
    usage, times = (f"dialog section[aria-labelledby=subject-{name}]" for name in ("usage", "latency"))
    days = gateway.usage(group_by="day", since=ago(29), **narrowed)
    same(admin, f"{usage} details.as-table table", "day", SUMS, days)
    assert f"{whole['requests']:,} requests" in admin.text(f"{usage} .readout")
    for split in SPLITS[group]:
        admin.click(f"{usage} [data-choice={split}]")
        rows = gateway.usage(group_by=split, since=ago(29), **narrowed)
        same(admin, f"{usage} .flush table", split, SUMS, rows)
        by = split if split in ("model", "upstream") else "model"
        same(admin, f"{times} .flush table", by, TIMES, latency(gateway, by, narrowed))
    same(admin, f"{times} details.as-table table", "day", TIMES, latency(gateway, "day", narrowed))
    if group != "upstream":
        refused = gateway.admin("refusals", since=ago(29), limit="200", **narrowed).json["data"]
        codes = [row["code"] for row in refused]

        def reasons() -> dict[str | None, int]:
            rows = admin.all("dialog [data-reason]")
            return {row.get_attribute("data-reason"): int(row.text.split()[0]) for row in rows}

        admin.until(lambda: reasons() == {code: codes.count(code) for code in codes})
        assert admin.text("dialog section[aria-labelledby=subject-refusals] .note").startswith(
            f"{len(refused)} request"
        )


def test_quotas_on_the_page_of_a_key(admin: Page, gateway: Gateway) -> None:
    admin.go("keys/alice")
    for row in gateway.admin("quotas", key="alice", binding="true").json["data"]:
        bar = f"dialog .quota[data-scope='{row['scope']}'][data-unit={row['unit']}]"
        admin.see(bar)
        wanted = [row["used"], row["limit"], *([row["reserved"]] if row["reserved"] else [])]
        admin.until(
            lambda bar=bar, wanted=wanted: (  # type: ignore[misc]
                [
                    float(each.get_attribute("data-value") or "nan")
                    for each in admin.all(f"{bar} .quota-foot [data-value]")
                ]
                == wanted
            )
        )
        assert percent(row["used"] + row["reserved"], row["limit"]) in admin.text(f"{bar} .quota-share")
    sample = gateway.admin("live").json
    (refused,) = [row for row in sample["refused"] if row["key"] == "alice"]
    assert f"{refused['requests']} \u00d7 {refused['status']}" in admin.text("#why-refused")


def test_the_overview_has_the_numbers_of_the_reports(admin: Page, gateway: Gateway) -> None:
    (whole,) = gateway.usage(group_by="", since=ago(29))
    figures(admin, "main", whole, BESIDE_TILES)
    times = "section[aria-labelledby=latency-title]"
    for group in ("upstream", "model"):
        admin.click(f"[data-choice={group}]")
        same(admin, f"{times} .flush table", group, TIMES, latency(gateway, group, {}))
    same(admin, f"{times} details.as-table table", "day", TIMES, latency(gateway, "day", {}))
    (before,) = gateway.usage(group_by="", since=ago(59), until=ago(31))
    failed = admin.text("[data-figure=errors-in-range]")
    assert failed.split("\n")[1] == percent(whole["errors"], whole["requests"])
    assert f"{percent(before['errors'], before['requests'])} in the period before" in failed
    (measured,) = latency(gateway, "", {})
    token = admin.text("[data-figure=first-token-p95]")
    assert f"half within {measured['first_token_p50_s'] * 1000:.0f} ms" in token
    assert f"{measured['first_token_count']} call" in token
    rows = gateway.admin("quotas").json["data"]
    near = sorted((row["used"] + row["reserved"]) / row["limit"] for row in rows)
    assert [each.text.split(" ", 1)[1] for each in admin.all("[data-figure=near] li")] == [
        percent(share, 1) for share in reversed(near) if share >= 0.8
    ]


def test_the_live_strip_has_the_numbers_of_the_gateway(admin: Page, gateway: Gateway) -> None:
    admin.see("[data-tile=tokens]")
    sample = gateway.admin("live").json
    assert f"{sample['tokens']['completion']:,} since the start" in admin.text("[data-tile=tokens]")
    assert admin.text("[data-tile=in-flight] .figure") == str(sample["in_flight"])
    admin.until(lambda: admin.text("[data-tile=errors] .figure") in (NOTHING, "0"))
    admin.until(lambda: admin.text("[data-tile=first-token] .figure") == NOTHING)  # no stream in the last minute


def test_a_member_sees_the_numbers_of_the_own_reports(page: Page, gateway: Gateway) -> None:
    page.open(token=secret("alice"))

    def own(path: str) -> Any:
        return gateway.get(f"/admin/api/{path}", key="alice").json["data"]

    (whole,) = own(f"usage?group_by=&since={ago(29)}")
    figures(page, "main", whole, BESIDE_TILES)
    assert page.value("[data-figure=requests-in-range] .figure") == whole["requests"]
    (month,) = own(f"usage?group_by=&since={ago(0)[:8]}01")
    assert page.value("[data-figure=spend] .figure") == month["cost_usd"]
    usage, times = (f"section[aria-labelledby={name}-title]" for name in ("usage", "latency"))
    same(page, f"{usage} .flush table", "model", SUMS, own(f"usage?group_by=model&since={ago(29)}"))
    same(page, f"{usage} details.as-table table", "day", SUMS, own(f"usage?group_by=day&since={ago(29)}"))
    same(page, f"{times} .flush table", "model", TIMES, own(f"latency?group_by=model&since={ago(29)}"))
    same(page, f"{times} details.as-table table", "day", TIMES, own(f"latency?group_by=day&since={ago(29)}"))


CALL = {"Tokens": lambda call: call["prompt_tokens"] + call["completion_tokens"], "Cost": lambda call: call["cost_usd"],
        "First token": lambda call: call["first_byte_s"], "Took": lambda call: call["duration_s"]}  # fmt: skip


def test_a_call_and_its_page_have_the_numbers_of_its_record(admin: Page, gateway: Gateway) -> None:
    admin.go("calls")
    admin.see("main table tbody tr th a")
    calls = {call["id"]: call for call in gateway.calls(limit=1000)}
    ids = admin.run("return [...document.querySelector('main table').tBodies[0].rows].map((row) => row.dataset.name)")
    compared = 0
    for name, row in zip(ids, admin.rows("main table"), strict=True):
        if name in calls:
            for title, of in CALL.items():
                assert (
                    row[title] in (NOTHING, "unknown")
                    if of(calls[name]) is None
                    else float(row[title]) == of(calls[name])
                )
            assert str(calls[name]["status"]) in row["Outcome"]
            compared += 1
    assert compared == len(calls)
    assert admin.text("section[aria-labelledby=calls-title] .note") == f"All {len(ids)}."
    dearest = max(calls.values(), key=lambda call: (call["cached_tokens"] > 0, call["cost_usd"] or 0))
    admin.go(f"calls?id={dearest['id']}")
    admin.until(lambda: len(admin.rows("main table")) == 1)
    admin.click("main table tbody tr th a")
    admin.see("dialog dt")
    facts = {term.text: value.text for term, value in zip(admin.all("dialog dt"), admin.all("dialog dd"), strict=True)}
    assert facts["Tokens"] == (
        f"{dearest['prompt_tokens']:,} prompt ({dearest['cached_tokens']:,} cached), {dearest['completion_tokens']:,} "
        f"completion ({dearest['reasoning_tokens']:,} reasoning), {dearest['usage_source']}"
    )
    assert facts["Attempts"] == str(dearest["attempts"])
    assert facts["Status"] == str(dearest["status"])
    assert facts["Cost"].startswith("$")
    assert float(facts["Cost"][1:]) == pytest.approx(dearest["cost_usd"], rel=0.01)
    admin.press(ESCAPE)


def test_the_models_and_times_of_a_call_are_shown_once(admin: Page, gateway: Gateway) -> None:
    calls = gateway.calls(limit=1000)
    streamed, plain = (next(call for call in calls if call["stream"] is is_stream) for is_stream in (True, False))
    for call in (streamed, plain):
        admin.go(f"calls?id={call['id']}")
        admin.until(lambda: len(admin.rows("main table")) == 1)
        admin.click("main table tbody tr th a")
        admin.see("dialog dt")
        terms = [term.text for term in admin.all("dialog dt")]
        names = {call[name] or call["model"] for name in ("model", "served_model", "routed_model", "returned_model")}
        assert next(term for term in terms if term.startswith("Model")) == (
            "Model" if len(names) == 1 else "Model asked for"
        )
        assert ("First token after" in terms) is call["stream"]
        assert ("not streamed" in admin.text("dialog figcaption")) is not call["stream"]
        admin.press(ESCAPE)
        admin.gone("dialog")


def test_refusals_have_the_numbers_of_the_api(admin: Page, gateway: Gateway) -> None:
    newest = gateway.admin("refusals", limit="1").json["data"][0]
    admin.go(f"calls?id={newest['id']}")
    admin.until(lambda: len(admin.rows("main table")) == 1)
    admin.click("main table tbody tr th a")
    admin.see("dialog dt")
    facts = {term.text: value.text for term, value in zip(admin.all("dialog dt"), admin.all("dialog dd"), strict=True)}
    assert facts["Status"] == str(newest["status"])
    assert facts["Id"] == newest["id"]
    admin.press(ESCAPE)
    sample = gateway.admin("live").json
    for reason, number in sample["rejections"].items():
        if number:
            admin.see(f"#refused [data-reason={reason}] .figure-small", f"{number:,}")
    shown = [(row["Key"], int(row["Status"]), int(row["Times"])) for row in admin.rows("#refused table")]
    assert sorted(shown) == sorted(
        (row["key"] or "no key", row["status"], row["requests"]) for row in sample["refused"]
    )


def usd(amount: float) -> str:
    """From one cent to one dollar."""
    return f"${amount:.4f}".removesuffix("0").removesuffix("0")


def quota_words(quota: Mapping[str, Any]) -> str:
    unit = next(name for name in ("requests", "tokens", "usd") if name in quota)
    amount = quota[unit]
    words = usd(amount) if unit == "usd" else f"{amount:,} {unit if amount != 1 else unit[:-1]}"
    return f"{words} per {quota['per']}"


def test_lists_of_keys_and_teams_have_the_numbers_of_the_api(admin: Page, gateway: Gateway) -> None:
    for view, one, name in (("keys", "key", "id"), ("teams", "team", "name")):
        admin.go(view)
        admin.see("main table tbody tr")
        known = {row[name]: row for row in gateway.admin(view, limit="500").json["data"]}
        found = {row[one.capitalize()]: row["Quotas"] for row in admin.rows("main table")}
        assert set(found) == set(known)
        for each, words in found.items():
            if known[each]["quotas"]:
                assert words == " · ".join(map(quota_words, known[each]["quotas"]))
        assert admin.text("main .note").startswith(f"{len(known)} {one}")


def test_upstreams_have_the_numbers_of_the_api(admin: Page, gateway: Gateway) -> None:
    admin.go("models")
    table = "section[aria-labelledby=upstreams-title] table"
    admin.see(f"{table} tbody tr")
    known = {row["name"]: row for row in gateway.admin("upstreams").json["data"]}
    for row in admin.rows(table):
        received = known[row["Upstream"]]
        assert [int(row[title]) for title in ("In flight", "Waiting")] == [received["in_flight"], received["waiting"]]
        assert int(row["API keys"].partition(",")[0]) == len(received["credentials"])
        shares = [(limit["used"] + limit["reserved"]) / limit["limit"] for limit in received["limits"]]
        assert row["Fullest limit"].startswith(percent(max(shares), 1) if shares else NOTHING)
    served = gateway.admin("models").json["data"]
    assert admin.text("main .note").startswith(f"{len(served)} models, {len(known)} upstream")


def test_how_full_quotas_are(admin: Page, gateway: Gateway) -> None:
    admin.go("quotas")
    admin.see("main table tbody tr")
    rows = gateway.admin("quotas").json["data"]
    fullest: dict[str, float] = {}
    for row in rows:
        share = (row["used"] + row["reserved"]) / row["limit"]
        fullest[row["scope"]] = max(share, fullest.get(row["scope"], 0))
    for row in admin.rows("main table"):
        assert row["How full"] == percent(fullest[f"key:{row['Key']}"], 1)
    of_keys = [row for row in rows if row["scope"].startswith("key:")]
    full = [row for row in of_keys if row["enforced"] and row["used"] + row["reserved"] >= row["limit"]]
    assert admin.text("main .note").startswith(f"Spent: {len(full)} of {len(of_keys)} limits of keys")


UNCOVERED = """
const [covered, free] = arguments;
const found = new Set();
const place = document.querySelector("dialog") ?? document.querySelector("main");
const walker = document.createTreeWalker(place, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const at = walker.currentNode.parentElement;
  if (!/[0-9]/.test(walker.currentNode.data) || !at.getClientRects().length) continue;
  if ([...covered, ...free].some((css) => at.closest(css))) continue;
  found.add(`${at.parentElement.outerHTML.slice(0, 150)} :: ${walker.currentNode.data}`);
}
return [...found];
"""


@pytest.mark.parametrize("view", PAGES)
def test_every_number_of_a_page_is_in_the_table(page: Page, view: str) -> None:
    page.open(token=secret("alice") if view == "mine" else ADMIN_TOKEN)
    page.go(view)
    covered = list(PAGES[view])
    for css in covered:
        page.until(lambda css=css: page.all(css))  # type: ignore[misc]
    page.until(lambda: not page.all("[aria-busy], .bone"))
    assert not page.run(UNCOVERED, covered, list(FREE))
