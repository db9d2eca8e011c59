// A quota as a bar: what is used, what running calls have reserved, what is left, and when it is free again.

import { h } from "./dom.js";
import { amount, bare, isCalendar, moment, momentInWords, percent, quotaName, span } from "./format.js";
import { expectedOf } from "./spending.js";

const NEARLY = 0.8;

export const isSpent = (row) => row.enforced && fullness(row) >= 1;

/** The used share of a window, from 0; over 1 if it is not enforced, or if the limit was lowered. */
export const fullness = (row) => (row.limit ? (row.used + row.reserved) / row.limit : 1);

function state(row) {
  const full = fullness(row);
  if (full >= 1) return row.enforced ? ["full", "spent"] : ["near", "over, not enforced"];
  if (full >= NEARLY) return ["near", "nearly spent"];
  return ["fine", ""];
}

/** When the limit is free again, in words. */
export function freeAgain(row) {
  if (!row.reset_at) return row.unit === "parallel" ? "free as soon as calls end" : "nothing used";
  return `${isCalendar(row) ? "resets" : "wholly free again"} in ${row.reset_s < 1 ? "a moment" : span(row.reset_s)}`;
}

const shares = ({ low, high }, limit) => (percent(low, limit) === percent(high, limit) ? "" : ` (${percent(low, limit)} to ${percent(high, limit)})`);

/** Its expected use at its end, and when it will be spent, where that is before its end. */
export function expected(row) {
  const found = expectedOf(row, row.daily);
  if (!found) return null;
  const title = `At the pace of the last 7 days; the range is that of the cheapest and the dearest of the last four weeks${found.spent ? `: ${moment(found.spent.getTime() / 1000)} UTC` : ""}`;
  const data = { forecast: found.spent?.toISOString() ?? "", end: found.end };
  return found.spent
    ? h("span", { class: "forecast", title, data }, `will be spent ${momentInWords(found.spent, row.per)}`)
    : h("span", { class: "expected", title, data }, `at this pace ${percent(found.end, row.limit)} at the end${shares(found, row.limit)}`);
}

/** The bar of one window; `actions` are buttons that belong to it. */
export function quotaBar(row, actions = []) {
  const [kind, said] = state(row);
  const used = h("span", { class: "used" });
  const reserved = h("span", { class: "reserved" });
  const scale = Math.max(row.limit, row.used + row.reserved) || 1;
  used.style.width = `${(100 * row.used) / scale}%`;
  reserved.style.width = `${(100 * row.reserved) / scale}%`;
  const left = bare(row.unit, row.remaining);
  const [taken, held, limit] = [row.used, row.reserved, row.limit].map((number) => amount(row.unit, number));
  const text = `${taken} used, ${held} reserved, limit ${limit}`;
  return h(
    "div",
    { class: `quota ${kind}`, data: { scope: row.scope, unit: row.unit, per: row.per ?? "" } },
    h(
      "div",
      { class: "quota-head" },
      h("span", { class: "quota-name" }, quotaName(row), !row.enforced && h("span", { class: "tag" }, "shadow")),
      h(
        "span",
        { class: "quota-share" },
        said && h("span", { class: `pill ${kind}` }, said),
        percent(row.used + row.reserved, row.limit),
      ),
    ),
    h(
      "div",
      {
        class: "bar-track",
        role: "meter",
        "aria-label": quotaName(row),
        "aria-valuemin": 0,
        "aria-valuemax": row.limit,
        "aria-valuenow": Math.min(row.limit, row.used + row.reserved),
        "aria-valuetext": text,
      },
      used,
      reserved,
    ),
    h(
      "div",
      { class: "quota-foot" },
      h(
        "span",
        null,
        h("b", { data: { value: row.used } }, bare(row.unit, row.used)),
        " of ",
        h("span", { data: { value: row.limit } }, amount(row.unit, row.limit)),
        row.reserved > 0 && [
          " · ",
          h("span", { data: { value: row.reserved } }, bare(row.unit, row.reserved)),
          " reserved",
        ],
        ` · ${left} left`,
      ),
      h("span", { title: row.reset_at && `${moment(row.reset_at)} UTC` }, freeAgain(row)),
    ),
    h("div", { class: "quota-foot" }, expected(row)),
    actions.length > 0 && h("div", { class: "quota-actions" }, actions),
  );
}
