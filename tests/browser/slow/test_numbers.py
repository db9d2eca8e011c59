"""Numbers of the pages about one key, team, model and upstream, of the overview, the lists and the dialogs.

Each is compared with the admin API, on both stores. tests/browser/numbers.py names the tests of other files, too.
"""

from __future__ import annotations

import math
from collections import Counter
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
    "First token p99": "first_token_p99_s", "Duration p50": "duration_p50_s", "Duration p95": "duration_p95_s",
    "Duration p99": "duration_p99_s",
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
        now = text.partition("\n")[0]  # below it is the number of the period before
        return None if now in (NOTHING, "unknown") else float(now)

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


BEFORE = """
return Object.fromEntries([...document.querySelectorAll(arguments[0] + " [data-before]")].map((each) => {
  const cell = each.closest("td");
  const head = cell.closest("table").tHead.rows[0].cells[cell.cellIndex].innerText.replace(/[^\\w ]/g, " ").trim();
  return [`${cell.closest("tr").dataset.name ?? "total"} ${head.replace(/\\s+/g, " ")}`, Number(each.dataset.before)];
}));
"""


def beside(rows: Iterable[Mapping[str, Any]], group: str) -> dict[str, float]:
    """The 95th percentiles of these rows, as they stand beside later ones."""
    of = {"First token p95": "first_token_p95_s", "Duration p95": "duration_p95_s"}
    known = {f"{row.get(group, 'total')} {title}": row[name] for row in rows for title, name in of.items()}
    return {name: value for name, value in known.items() if value is not None}


def test_a_p95_has_that_of_the_time_before_beside_it(admin: Page, gateway: Gateway) -> None:
    def asked(group: str, since: int, until: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = gateway.admin("latency", group_by=group, since=ago(since), until=ago(until)).json[
            "data"
        ]
        return found

    admin.go("models")
    for group in ("model", "upstream"):
        css = f"section[aria-labelledby={group}s-title] table"
        admin.see(f"{css} tbody tr[data-name]")
        listed = {name for name, _ in named_rows(admin, css)}
        yesterday = beside([row for row in asked(group, 1, 1) if row[group] in listed], group)
        assert yesterday or group == "model"  # planted calls have another model
        admin.until(lambda css=css, expected=yesterday: admin.run(BEFORE, css) == expected)  # type: ignore[misc]
        today = {row[group]: row["requests"] for row in asked(group, 0, 0) if row[group] in listed}
        calls = {name: int(row["Calls today"]) for name, row in named_rows(admin, css)}
        assert calls == {name: today.get(name, 0) for name in listed}


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
    admin.click(f"{usage} [data-choice=requests]")
    admin.see(f"{usage} .readout", f"Requests {whole['requests']:,}")
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
    assert f"median {measured['first_token_p50_s'] * 1000:.0f} ms" in token
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
        "First token": lambda call: call["first_byte_s"], "Duration": lambda call: call["duration_s"]}  # fmt: skip


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
    known = gateway.admin("refusals", limit="1000").json["data"]
    for code, number in Counter(row["code"] for row in known).items():
        admin.see(f"#refused [data-reason={code}] .figure-small", f"{number:,}")
    shown = Counter[tuple[str, int]]()
    for row in admin.rows("#refused table"):
        shown[row["Key"], int(row["Status"])] += int(row["Times"])
    assert shown == Counter((row["key"] or "no known key", row["status"]) for row in known)


def usd(amount: float) -> str:
    """From one cent to one dollar."""
    return f"${amount:.4f}".removesuffix("0").removesuffix("0")


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


@pytest.mark.parametrize("by", ["key", "owner", "team"])
def test_the_table_of_keys_quotas_and_teams_has_the_numbers_of_the_api(admin: Page, gateway: Gateway, by: str) -> None:
    admin.go(f"keys?by={by}")
    admin.see(f"[data-choice={by}][aria-pressed=true]")
    admin.see("main table tbody tr[data-name]")
    keys = gateway.admin("keys", limit="500").json["data"]
    teams = gateway.admin("teams", limit="500").json["data"]
    windows = gateway.admin("quotas").json["data"]
    refused = gateway.admin("refusals", limit="1000").json["data"]
    owners = {key["id"]: key["owner"] or "" for key in keys}
    spend: dict[str, float] = {}
    for row in gateway.usage(group_by="key,team", since=ago(29)):
        name = owners.get(row["key"], "") if by == "owner" else row[by]
        spend[name] = spend.get(name, 0) + (row["cost_usd"] or 0)
    known = {
        "key": {*owners, *spend},
        "owner": {*owners.values(), *spend},
        "team": {team["name"] for team in teams} | {*spend, ""},
    }
    found = dict(named_rows(admin, "main table"))
    assert set(found) == known[by]
    for name, row in found.items():
        assert (
            admin.run("return Number(arguments[0])", row["30 days"]) == pytest.approx(spend.get(name, 0))
            or row["30 days"] == "unknown"
        )
        times = sum((owners.get(each["key"], "") if by == "owner" else each[by] or "") == name for each in refused)
        assert int(row["Refused"]) == times
        shares = [share(each) for each in windows if scope_of(each) == (by, name)]
        assert row["Fullest limit"].startswith(percent(max(shares), 1) if shares else ("no", "those")) or not shares
    total = admin.run(
        "return [...document.querySelectorAll('main table tfoot td')].map((cell) => cell.dataset.value).filter(Boolean)"
    )
    if len(found) > 1:
        assert float(total[-1]) == sum(int(row["Refused"]) for row in found.values())
        assert float(total[-2]) == pytest.approx(sum(spend.values()))
    else:
        assert total == []
    assert admin.text("main .note").startswith(
        f"{len(keys)} keys, {sum(key['status'] == 'active' for key in keys)} active; {len(teams)} team"
    )
    of_keys = [row for row in windows if row["scope"].startswith("key:")]
    full = [row for row in of_keys if row["enforced"] and share(row) >= 1]
    assert admin.text("main .note.spent").startswith(f"Spent: {len(full)} of {len(of_keys)} limits of keys")


def named_rows(page: Page, css: str) -> list[tuple[str, dict[str, str]]]:
    """The rows of a table with their names."""
    names = page.run(
        "return [...document.querySelector(arguments[0]).tBodies[0].rows].map((row) => row.dataset.name)", css
    )
    return list(zip(names, page.rows(css), strict=True))


def share(window: Mapping[str, Any]) -> float:
    return float((window["used"] + window["reserved"]) / window["limit"])


def scope_of(window: Mapping[str, Any]) -> tuple[str, str]:
    """The grouping of a window, and its name there."""
    kind, _, name = window["scope"].partition(":")
    return ("owner" if kind == "person" else kind), name


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
