// A quota as a bar: what is used, what running calls have reserved, what is left, and when it is free again.

import { h } from "./dom.js";
import { amount, bare, fullMoment, isCalendar, momentInWords, percent, quotaName, span } from "./format.js";
import { expectedOf } from "./spending.js";

export const NEARLY = 0.8;

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
  return `${isCalendar(row) ? "resets" : "all free again"} in ${row.reset_s < 1 ? "a moment" : span(row.reset_s)}`;
}

const shares = ({ low, high }, limit) => (percent(low, limit) === percent(high, limit) ? "" : ` (${percent(low, limit)} to ${percent(high, limit)})`);

/** Its expected use at its end, and when it will be spent, where that is before its end. */
export function expected(row) {
  const found = expectedOf(row, row.daily);
  if (!found) return null;
  const title = `At the pace of the last 7 days; the range is that of the cheapest and the dearest of the last four weeks${found.spent ? `: ${fullMoment(found.spent.getTime() / 1000)}` : ""}`;
  const data = { forecast: found.spent?.toISOString() ?? "", end: found.end };
  return found.spent
    ? h("span", { class: "forecast", title, data }, `will be spent ${momentInWords(found.spent, row.per)}`)
    : h("span", { class: "expected", title, data }, `at this pace ${percent(found.end, row.limit)} at the end${shares(found, row.limit)}`);
}

/** The used and the reserved part of a limit, drawn; `props` are those of the bar. */
function track({ used, reserved, limit }, props) {
  const scale = Math.max(limit, used + reserved) || 1;
  const part = (name, number) => {
    const node = h("span", { class: name });
    node.style.width = `${(100 * number) / scale}%`;
    return node;
  };
  return h("span", { class: "bar-track", ...props }, part("used", used), part("reserved", reserved));
}

/** A limit in one line: a bar and its share; `more` comes behind it. */
export const thinBar = (kind, row, ...more) =>
  h("span", { class: `thin ${kind}` }, track(row, { "aria-hidden": "true" }), h("span", { class: "share-text" }, percent(row.used + row.reserved, row.limit)), more);

/** The kind of a window's bar. */
export const fullnessKind = (row) => state(row)[0];

/** The bar of one window; `actions` are buttons that belong to it. */
export function quotaBar(row, actions = []) {
  const [kind, said] = state(row);
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
    track(row, {
      role: "meter",
      "aria-label": quotaName(row),
      "aria-valuemin": 0,
      "aria-valuemax": row.limit,
      "aria-valuenow": Math.min(row.limit, row.used + row.reserved),
      "aria-valuetext": text,
    }),
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
      h("span", { title: row.reset_at && fullMoment(row.reset_at) }, freeAgain(row)),
    ),
    h("div", { class: "quota-foot" }, expected(row)),
    actions.length > 0 && h("div", { class: "quota-actions" }, actions),
  );
}
