// The first row of the overview: what this month will cost, how the range went, and who is near a limit.

import { address } from "./address.js";
import { get } from "./api.js";
import { fullness } from "./bars.js";
import { fill, h } from "./dom.js";
import { NOTHING, compact, count, day, many, percent, quotaName, span, usd } from "./format.js";
import { firstDay, monthBefore, monthStart, rangeWords, shifted } from "./range.js";
import { LOOK_BACK_DAYS, change, comparison, forecast, within } from "./spending.js";
import { isBad, total } from "./sums.js";

const NEAR = 0.8;
const SHOWN = 3;

/** The first day whose sums the row needs. */
export const firstDayOf = (range) => [firstDay(range), monthBefore(day()).since, shifted(day(), -LOOK_BACK_DAYS)].sort()[0];

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
  const [today, yesterday] = [day(), day(1)];
  const since = monthStart(today);
  const month = total(rows.filter((row) => row.day >= since));
  const compared = comparison(rows, { now: { since, until: yesterday }, before: monthBefore(yesterday) });
  const costs = new Map(rows.map((row) => [row.day, row.cost_usd ?? 0]));
  const { end, low, high } = forecast(costs, new Date());
  const changed = compared && change(compared.before.cost_usd, compared.now.cost_usd ?? 0);
  return tile(
    "spend",
    "Spend this month",
    [usd(month.cost_usd), month.unpriced > 0 && h("span", { class: "unknown" }, " + ?")],
    month.cost_usd,
    h("span", { title: "Spent, and for each day that is left the mean of the last 7 whole days; the range is that of the cheapest and the dearest of the last four weeks" }, "expected ", h("b", { data: { value: end } }, usd(end)), ` (${usd(low)} to ${usd(high)})`),
    changed && [h("br"), h("span", { title: `Without today: ${usd(compared.now.cost_usd)}, ${usd(compared.before.cost_usd)} then` }, `${changed} compared with the same days of last month`)],
  );
}

/** The omissions of a comparison, and the numbers of both periods, in words. */
function without({ until, compared }, now, before) {
  const left = compared.now.until === until ? "" : `Without ${compared.unit === "day" ? "today" : `the running ${compared.unit}`}: `;
  return `${left}${now}, ${before} in the same part of the period before`;
}

function requests({ now, compared }, range) {
  const changed = compared && change(compared.before.requests, compared.now.requests);
  return tile(
    "requests-in-range",
    `Requests, ${rangeWords(range)}`,
    compact(now.requests),
    now.requests,
    !compared
      ? "too early to compare"
      : changed
        ? h("span", { title: without(range, count(compared.now.requests), count(compared.before.requests)) }, `${changed} compared with the period before`)
        : "none in the period before",
  );
}

function errors({ now, compared, refused }, range) {
  const rate = (sum) => percent(sum.errors, sum.requests);
  return tile(
    "errors-in-range",
    `Failed, ${rangeWords(range)}`,
    h("span", { class: isBad(now) ? "bad" : "" }, rate(now)),
    now.errors,
    `${count(now.errors)} of ${many(now.requests, "request")}`,
    compared?.before.requests > 0 && ` · ${rate(compared.before)} in the period before`,
    refused && [h("br"), refusedInWords(refused)],
  );
}

/** How many requests the gateway refused, which are in no other number: they were no calls. */
const refusedInWords = ({ number, isMore, isCut, href }) =>
  h(
    "a",
    { class: "all", href, data: { refused: number }, title: "Requests that the gateway refused itself; no upstream was asked. Its list has 7 days, and in a flood not all." },
    `${isMore ? "over " : ""}${count(number)} refused by the gateway${isCut ? " in the last 7 days" : ""}`,
  );

function firstToken(found, range) {
  const p95 = found?.first_token_p95_s ?? null;
  return tile(
    "first-token-p95",
    `First token p95, ${rangeWords(range)}`,
    span(p95),
    p95,
    found?.first_token_count ? `median ${span(found.first_token_p50_s)} · ${many(found.first_token_count, "call")}` : "no measurement",
    found?.before?.first_token_count > 0 && [h("br"), h("span", { data: { before: found.before.first_token_p95_s } }, `${span(found.before.first_token_p95_s)} in the period before`)],
  );
}

/** `linked(group)`: whether the user has the pages of keys or teams. */
function nearLimits(windows, linked) {
  const sorted = [...windows].sort((one, other) => fullness(other) - fullness(one));
  const near = sorted.filter((row) => fullness(row) >= NEAR);
  const fullest = sorted.find((row) => fullness(row) > 0);
  const owner = (row) => {
    const [kind, ...rest] = row.scope.split(":");
    const name = rest.join(":");
    if (kind === "gateway") return "gateway";
    return ["key", "team"].includes(kind) && linked(kind) ? h("a", { href: address(`${kind}s`, name) }, name) : h("b", null, name);
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
      : [many(windows.length, "limit"), fullest && h("span", { data: { fullest: fullest.scope } }, ", the fullest: ", owner(fullest), " ", h("span", { class: "moment" }, percent(fullest.used + fullest.reserved, fullest.limit)), ` of ${quotaName(fullest)}`)],
  );
}

/** The row; without `hasSpend` another place shows the spend of the month. `sums` shows what `Reports.ofRange` gives, and what was refused in the range; `look(signal)` asks for the limits, `windows(rows)`
 * shows them; `latency` shows the percentiles of the range. `linked(group)` returns whether the user has the pages of keys or teams. */
export class Headline {
  constructor(linked, { hasSpend = true } = {}) {
    Object.assign(this, { linked, hasSpend });
    this.node = h("div", { class: "tiles", role: "group", "aria-label": "At a glance" });
    this.parts = { sums: [], first: null, near: tile("near", "Near a limit", NOTHING) };
  }

  sums({ days, steps, compared }, range, refused = null) {
    const of = {
      now: total(within(steps, range)),
      compared: comparison(compared, range.compared),
      refused,
    };
    this.parts.sums = [this.hasSpend && spend(days), requests(of, range), errors(of, range)];
    this.draw();
  }

  latency(found, range) {
    this.parts.first = firstToken(found, range);
    this.draw();
  }

  windows(windows) {
    this.parts.near = nearLimits(windows, this.linked);
    this.draw();
  }

  async look(signal) {
    this.windows((await get("quotas", null, signal)).data);
  }

  draw() {
    if (this.parts.sums.length) fill(this.node, this.parts.sums, this.parts.first, this.parts.near);
  }
}
