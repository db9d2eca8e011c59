// Sums of usage, as the report has them: added up, as figures, as bars of a chart, as columns of a table.

import { h } from "./dom.js";
import { UNKNOWN, axisCount, axisUsd, compact, count, percent, usd } from "./format.js";

const SUMMED = [
  "requests",
  "errors",
  "prompt_tokens",
  "completion_tokens",
  "cached_tokens",
  "reasoning_tokens",
  "estimated_tokens",
  "total_tokens",
  "unpriced",
];

/** The sum of rows; a cost is that of the requests whose cost is known, to the billionth of a dollar. */
export function total(rows) {
  const sums = Object.fromEntries(SUMMED.map((name) => [name, rows.reduce((all, row) => all + row[name], 0)]));
  const known = rows.map((row) => row.cost_usd).filter((cost) => cost !== null);
  const sum = Math.round(known.reduce((all, cost) => all + cost, 0) * 1e9) / 1e9;
  const estimated_percent = share(sums.estimated_tokens, sums.total_tokens);
  return { ...sums, estimated_percent, cost_usd: known.length || !rows.length ? sum : null };
}

/** Rows with the same names in `groups` as one, exactly as the report would add them up. */
export function added(rows, groups) {
  const named = Map.groupBy(rows, (row) => JSON.stringify(groups.map((group) => row[group])));
  return [...named.values()].map((some) => {
    if (some.length === 1) return some[0];
    const names = Object.fromEntries(groups.map((group) => [group, some[0][group]]));
    return { ...total(some), ...names };
  });
}

/** In percent with two decimals; neither rounded to nothing, nor to all. */
const share = (part, whole) =>
  part === 0 ? 0 : part === whole ? 100 : Math.min(99.99, Math.max(0.01, Number(((100 * part) / whole).toFixed(2))));

const MANY_FAILED = 0.01;
/** Whether the share of failed requests is high enough to be pointed out. */
export const isBad = (row) => row.errors > MANY_FAILED * row.requests;

/** The known cost, with a mark if there is more than that. */
function cost(row) {
  const title = row.unpriced
    ? `The cost of ${count(row.unpriced)} of ${count(row.requests)} requests is unknown`
    : null;
  if (row.cost_usd === null) return h("span", { class: "unknown", title }, UNKNOWN);
  return row.unpriced
    ? [usd(row.cost_usd), h("span", { class: "unknown", title }, " + ?", h("span", { class: "sr" }, title))]
    : usd(row.cost_usd);
}

/** Sums as a line of large numbers; `hasTiles`: tiles above it have the requests and how many failed. */
export function totals(row, { hasTiles = false } = {}) {
  const figure = (name, title, value, more, exact) =>
    h(
      "div",
      { class: "sum", data: { sum: name } },
      h("dt", null, title),
      h(
        "dd",
        null,
        h("b", { title: exact, data: { value: row[name] ?? UNKNOWN } }, value),
        more && h("small", null, more),
      ),
    );
  return h(
    "dl",
    { class: "sums" },
    !hasTiles && figure("requests", "Requests", compact(row.requests), null, count(row.requests)),
    figure(
      "prompt_tokens",
      "Prompt tokens",
      compact(row.prompt_tokens),
      `${compact(row.cached_tokens)} cached`,
      count(row.prompt_tokens),
    ),
    figure(
      "completion_tokens",
      "Completion tokens",
      compact(row.completion_tokens),
      `${compact(row.reasoning_tokens)} reasoning`,
      count(row.completion_tokens),
    ),
    figure(
      "cost_usd",
      "Cost",
      usd(row.cost_usd),
      row.unpriced ? `and ${compact(row.unpriced)} request${row.unpriced === 1 ? "" : "s"} unknown` : "all requests priced",
      row.cost_usd === null ? null : `$${row.cost_usd}`,
    ),
    !hasTiles && figure("errors", "Failed", compact(row.errors), percent(row.errors, row.requests), count(row.errors)),
    figure(
      "estimated_tokens",
      "Estimated",
      percent(row.estimated_tokens, row.total_tokens),
      "of the tokens",
      `${count(row.estimated_tokens)} tokens`,
    ),
  );
}

const dollars = (number, step) => (step ? axisUsd(number, step) : number >= 1000 ? `$${compact(number)}` : `$${Number(number.toPrecision(3))}`);

const amount = (number, step) => (step ? axisCount(number, step) : compact(number));

/** The measures of the chart and the bars of tables: `of` a row, formatted in short, or for an axis with its `step`, and
 * `alone`: in full. A cost may be unknown (null). */
export const MEASURES = {
  cost: { title: "Cost", of: (row) => row.cost_usd, format: dollars, alone: usd },
  tokens: { title: "Tokens", of: (row) => row.total_tokens, format: amount },
  requests: { title: "Requests", of: (row) => row.requests, format: amount },
  errors: { title: "Failed", of: (row) => row.errors, format: amount },
};

/** A row by one measure, in words. */
export function inOneNumber(measure, row) {
  const amount = measure.of(row);
  return `${measure.title} ${amount === null ? UNKNOWN : (measure.alone ?? measure.format)(amount)}`;
}

/** A row in words. */
export function dayInNumbers(row) {
  if (!row.requests) return "no calls";
  const cost = row.cost_usd === null ? "unknown cost" : `${usd(row.cost_usd)}${row.unpriced ? " + unknown" : ""}`;
  const tokens = `${count(row.prompt_tokens)} prompt and ${count(row.completion_tokens)} completion tokens`;
  return `${count(row.requests)} requests · ${tokens} · ${cost} · ${count(row.errors)} failed`;
}

const number = (title, name, hint) => ({
  title,
  hint,
  isNumber: true,
  sort: (row) => row[name],
  show: (row) => count(row[name]),
});
/** The columns of every table of sums. */
export const NUMBERS = [
  number("Requests", "requests"),
  number("Prompt", "prompt_tokens", "Prompt tokens, cached ones included"),
  number("Cached", "cached_tokens", "Prompt tokens that the upstream had in its cache"),
  number("Completion", "completion_tokens", "Completion tokens, reasoning included"),
  number("Reasoning", "reasoning_tokens", "Completion tokens that were thought and not said"),
  { title: "Cost", isNumber: true, sort: (row) => row.cost_usd, show: cost },
  {
    title: "Failed",
    isNumber: true,
    sort: (row) => row.errors,
    show: (row) =>
      row.errors
        ? h("span", { class: isBad(row) ? "bad" : "" }, count(row.errors), h("small", null, ` ${percent(row.errors, row.requests)}`))
        : "0",
  },
  {
    title: "Estimated",
    hint: "Share of the tokens that nobody reported",
    isNumber: true,
    sort: (row) => row.estimated_percent,
    show: (row) => percent(row.estimated_tokens, row.total_tokens),
  },
];
