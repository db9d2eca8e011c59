// The range that a page is about, the period before it, and the control that chooses it. Days and hours are in UTC.

import { fill, h } from "./dom.js";
import { day } from "./format.js";
import { switcher } from "./switcher.js";

export const RANGES = { "1h": "1 hour", "24h": "24 hours", today: "Today", "7d": "7 days", "30d": "30 days", month: "This month", custom: "Custom" };
const LENGTHS = { today: 1, "7d": 7, "30d": 30 };
const HOURS = { "1h": 2, "24h": 24 }; // sums are of whole hours: the last one and the running one
const HOUR_MS = 3_600_000;
const DAY = /^\d{4}-\d\d-\d\d$/;
const DAY_MS = 86_400_000;

/** The day so many days after another. */
export const shifted = (text, days) => new Date(Date.parse(`${text}T00:00:00Z`) + days * DAY_MS).toISOString().slice(0, 10);
export const monthStart = (text) => `${text.slice(0, 7)}-01`;
const daysBetween = (since, until) => Math.round((Date.parse(until) - Date.parse(since)) / DAY_MS) + 1;

/** The same days of the month before, as many as it has. */
export function monthBefore(until) {
  const last = shifted(monthStart(until), -1);
  const same = `${last.slice(0, 8)}${until.slice(8)}`;
  return { since: monthStart(last), until: same < last ? same : last };
}

function hours(name) {
  const ago = (number) => new Date(Date.now() - number * HOUR_MS).toISOString().slice(0, 13);
  const length = HOURS[name];
  return {
    name,
    unit: "hour",
    since: ago(length - 1),
    until: ago(0),
    before: { since: ago(2 * length - 1), until: ago(length) },
    steps: Array.from({ length }, (_, place) => ago(length - 1 - place)),
  };
}

/**
 * The range of the settings of an address: `name`, `unit` (hour or day), `since` and `until` (included), `steps` (all its
 * hours or days), `before` (the period before: `since`, `until`). What cannot be read is the default, 30 days.
 */
export function readRange(query) {
  const today = day();
  let name = query.get("range");
  let [since, until] = [query.get("since") ?? "", query.get("until") ?? ""];
  if (name === "custom" && !(DAY.test(since) && DAY.test(until) && since <= until)) name = null;
  if (!(name in RANGES)) name = "30d";
  if (name in HOURS) return hours(name);
  if (name === "month") [since, until] = [monthStart(today), today];
  else if (name !== "custom") [since, until] = [shifted(today, 1 - LENGTHS[name]), today];
  const length = daysBetween(since, until);
  const before = name === "month" ? monthBefore(today) : { since: shifted(since, -length), until: shifted(since, -1) };
  return { name, unit: "day", since, until, before, steps: Array.from({ length }, (_, place) => shifted(since, place)) };
}

/** The range in words, for captions. */
export const rangeWords = (range) =>
  range.name === "custom"
    ? `${range.since} to ${range.until}`
    : range.name === "1h"
      ? `since ${range.since.slice(11)}:00`
      : RANGES[range.name].toLowerCase();

/** The control; `tell` is given the settings of the address: `range`, and of a custom one `since` and `until`. */
export function rangeControl(range, tell) {
  const date = (name, value) => h("input", { type: "date", name, value: value.slice(0, 10), "aria-label": name === "since" ? "From" : "To" });
  const [since, until] = [date("since", range.since), date("until", range.until)];
  const own = h("span", { class: "dates", hidden: range.name !== "custom" }, since, " to ", until);
  const tellOwn = () => {
    if (since.value && until.value && since.value <= until.value)
      tell({ range: "custom", since: since.value, until: until.value });
  };
  own.addEventListener("change", tellOwn);
  return fill(
    h("div", { class: "range" }),
    switcher("Range", RANGES, range.name, (name) => {
      own.hidden = name !== "custom";
      if (name === "custom") tellOwn();
      else tell({ range: name, since: "", until: "" });
    }),
    own,
  );
}
