// The first row of the overview: what this month will cost, how the range went, and who is near a limit.

import { get } from "./api.js";
import { fullness } from "./bars.js";
import { fill, h } from "./dom.js";
import { NOTHING, compact, count, day, many, percent, quotaName, span, usd } from "./format.js";
import { monthBefore, monthStart, rangeWords, shifted } from "./range.js";
import { change, forecast } from "./spending.js";
import { total } from "./sums.js";

const NEAR = 0.8;
const MANY_FAILED = 0.01;
const SHOWN = 3;

const atOf = (row) => row.hour ?? row.day;
const within = (rows, { since, until }) => rows.filter((row) => atOf(row) >= since && atOf(row) <= until);

/** The first day whose sums the row needs. */
export const firstDayOf = (range) =>
  [range.before.since.slice(0, 10), monthBefore(day()).since, shifted(day(), -8)].reduce((one, other) => (one < other ? one : other));

function tile(name, title, value, exact, ...more) {
  return h(
    "div",
    { class: "tile", data: { figure: name } },
    h("h3", null, title),
    h("p", { class: "figure", data: { value: exact ?? "" } }, value),
    h("p", { class: "more" }, more),
  );
}

function spend(rows) {
  const today = day();
  const month = total(within(rows, { since: monthStart(today), until: today }));
  const before = total(within(rows, monthBefore(today)));
  const costs = new Map(rows.map((row) => [row.day, row.cost_usd ?? 0]));
  const expected = forecast(costs, new Date());
  const changed = change(before.cost_usd, month.cost_usd ?? 0);
  return tile(
    "spend",
    "Spend this month",
    [usd(month.cost_usd), month.unpriced > 0 && h("span", { class: "unknown" }, " + ?")],
    month.cost_usd,
    h("span", { title: "What is spent, and for each day that is left the mean of the last 7 whole days" }, "forecast ", h("b", { data: { value: expected } }, usd(expected))),
    changed && [h("br"), h("span", { title: `${usd(before.cost_usd)} then` }, `${changed} on the same days of last month`)],
  );
}

function requests(rows, range) {
  const [now, before] = [total(within(rows, range)), total(within(rows, range.before))];
  const changed = change(before.requests, now.requests);
  return tile(
    "requests-in-range",
    `Requests, ${rangeWords(range)}`,
    compact(now.requests),
    now.requests,
    changed ? `${changed} on the period before` : "none in the period before",
  );
}

function errors(rows, range) {
  const [now, before] = [total(within(rows, range)), total(within(rows, range.before))];
  const rate = (sum) => percent(sum.errors, sum.requests);
  return tile(
    "errors-in-range",
    `Failed, ${rangeWords(range)}`,
    h("span", { class: now.errors > MANY_FAILED * now.requests ? "bad" : "" }, rate(now)),
    now.errors,
    `${count(now.errors)} of ${many(now.requests, "request")}`,
    before.requests > 0 && ` · ${rate(before)} in the period before`,
  );
}

function firstToken(found, range) {
  const p95 = found?.first_token_p95_s ?? null;
  return tile(
    "first-token-p95",
    `First token p95, ${rangeWords(range)}`,
    span(p95),
    p95,
    found?.first_token_count ? `half within ${span(found.first_token_p50_s)} · ${many(found.first_token_count, "call")}` : "none measured",
  );
}

function nearLimits(windows) {
  const near = windows.filter((row) => fullness(row) >= NEAR).sort((one, other) => fullness(other) - fullness(one));
  const owner = (row) => {
    const [kind, ...rest] = row.scope.split(":");
    return kind === "gateway" ? "gateway" : h("a", { href: `#${kind}s/${encodeURIComponent(rest.join(":"))}` }, rest.join(":"));
  };
  return tile(
    "near",
    "Near a limit",
    near.length ? count(near.length) : "none",
    near.length,
    near.length
      ? h(
          "ul",
          null,
          near.slice(0, SHOWN).map((row) =>
            h("li", { title: quotaName(row) }, owner(row), ` ${percent(row.used + row.reserved, row.limit)}`),
          ),
          near.length > SHOWN && h("li", null, h("a", { class: "all", href: "#quotas" }, "all limits")),
        )
      : `${many(windows.length, "limit")}, none above ${NEAR * 100} %`,
  );
}

/** The row: `sums` shows sums by day, and by the steps of the range; `look(signal)` asks for the limits, `windows(rows)`
 * shows them; `latency` shows the percentiles of the range. */
export class Headline {
  constructor() {
    this.node = h("div", { class: "tiles", role: "group", "aria-label": "At a glance" });
    this.parts = { sums: [], first: null, near: tile("near", "Near a limit", NOTHING) };
  }

  sums(byDay, bySteps, range) {
    this.parts.sums = [spend(byDay), requests(bySteps, range), errors(bySteps, range)];
    this.draw();
  }

  latency(found, range) {
    this.parts.first = firstToken(found, range);
    this.draw();
  }

  windows(windows) {
    this.parts.near = nearLimits(windows);
    this.draw();
  }

  async look(signal) {
    this.windows((await get("quotas", null, signal)).data);
  }

  draw() {
    if (this.parts.sums.length) fill(this.node, this.parts.sums, this.parts.first, this.parts.near);
  }
}
