// The range that a page is about, the period before it, and the control that chooses it. Days and hours are in UTC.

import { fill, h } from "./dom.js";
import { day } from "./format.js";
import { hasHours, hasMinutes } from "./grouping.js";
import { switcher } from "./switcher.js";

export const RANGES = { "1h": "1 hour", "3h": "3 hours", "24h": "24 hours", today: "Today", "7d": "7 days", "30d": "30 days", month: "This month", last: "Last month", custom: "Custom" };
const LENGTHS = { today: 1, "7d": 7, "30d": 30 };
const MONTHS = ["month", "last"]; // compared with the same days of the month before
const MINUTES = { "1h": 60, "3h": 180 }; // as gateway/wings/answers/minutes.py keeps them
const HOURS = { "1h": 2, "3h": 4, "24h": 24 }; // sums are of whole hours: those before and the running one
const HOURS_KEPT_DAYS = 14; // as gateway/store/__init__.py has it
const HOUR_MS = 3_600_000;
const MINUTE_MS = 60_000;
const DAY = /^\d{4}-\d\d-\d\d$/;
const DAY_MS = 86_400_000;

/** The day a number of days after another. */
export const shifted = (text, days) => new Date(Date.parse(`${text}T00:00:00Z`) + days * DAY_MS).toISOString().slice(0, 10);
export const monthStart = (text) => `${text.slice(0, 7)}-01`;
const daysBetween = (since, until) => Math.round((Date.parse(until) - Date.parse(since)) / DAY_MS) + 1;
const hour = (before) => new Date(Date.now() - before * HOUR_MS).toISOString().slice(0, 13);
const earlierHour = (text, hours) => new Date(Date.parse(`${text}:00:00Z`) - hours * HOUR_MS).toISOString().slice(0, 13);

const minute = (before) => new Date(Date.now() - before * MINUTE_MS).toISOString().slice(0, 16);

/** The same days of the month before, as many as it has. */
export function monthBefore(until) {
  const last = shifted(monthStart(until), -1);
  const same = `${last.slice(0, 8)}${until.slice(8)}`;
  return { since: monthStart(last), until: same < last ? same : last };
}

/** The compared whole hours, with those the same number of hours before. The running hour is left out. */
function comparedHours(since, length) {
  const until = hour(1);
  return { unit: "hour", now: { since, until }, before: { since: earlierHour(since, length), until: earlierHour(until, length) } };
}

/** The compared whole days; `isMonth`: with the same days of the month before. Today is left out. */
function comparedDays(since, until, isMonth) {
  const last = until < day() ? until : day(1);
  const length = daysBetween(since, until);
  const before = isMonth ? monthBefore(last < since ? since : last) : { since: shifted(since, -length), until: shifted(last, -length) };
  return { unit: "day", now: { since, until: last }, before };
}

/** Minutes: an hour is compared with the one before, of which minutes are known, too; three hours are with whole hours. */
function readMinutes(name) {
  const length = MINUTES[name];
  const [since, until] = [minute(length - 1), minute(0)];
  const compared =
    length > 90
      ? comparedHours(hour(length / 60), length / 60)
      : { unit: "minute", now: { since, until: minute(1) }, before: { since: minute(2 * length - 1), until: minute(length + 1) } };
  const steps = Array.from({ length }, (_, place) => minute(length - 1 - place));
  return { name, unit: "minute", since, until, steps, whole: { since, until }, compared };
}

const hoursOf = (since, until) => {
  const steps = [];
  for (let at = since; at <= until; at = earlierHour(at, -1)) steps.push(at);
  return steps;
};

/**
 * The range of the settings of an address: `name`, `unit` (minute, hour or day), `since` and `until` (included), `steps` (all its
 * minutes, hours or days), `whole` (`since` and `until` for sums of the whole range: days where they are enough, which are cheaper), and
 * `compared`: what is compared with what (`unit`, `now` and `before` with `since` and `until`; an equal part of the period
 * before, without the running hour or day). An unreadable range is the default, 30 days.
 */
export function readRange(query) {
  const today = day();
  let name = query.get("range");
  let [since, until] = [query.get("since") ?? "", query.get("until") ?? ""];
  if (name === "custom" && !(DAY.test(since) && DAY.test(until) && since <= until)) name = null;
  if (!Object.hasOwn(RANGES, name)) name = "30d";
  if (name in MINUTES && hasMinutes(query.get("group") ?? "model")) return readMinutes(name);
  if (name in HOURS) {
    [since, until] = [hour(HOURS[name] - 1), hour(0)];
    const compared = comparedHours(since, HOURS[name]);
    return { name, unit: "hour", since, until, steps: hoursOf(since, until), whole: { since, until }, compared };
  }
  if (name === "month") [since, until] = [monthStart(today), today];
  else if (name === "last") [since, until] = [monthStart(shifted(monthStart(today), -1)), shifted(monthStart(today), -1)];
  else if (name !== "custom") [since, until] = [shifted(today, 1 - LENGTHS[name]), today];
  const compared = name === "today" ? comparedHours(`${today}T00`, 24) : comparedDays(since, until, MONTHS.includes(name));
  const whole = { since, until };
  const hasThem = !MONTHS.includes(name) && since > day(HOURS_KEPT_DAYS) && since <= today && hasHours(query.get("group") ?? "");
  if (!hasThem) {
    const steps = Array.from({ length: daysBetween(since, until) }, (_, place) => shifted(since, place));
    return { name, unit: "day", since, until, steps, whole, compared };
  }
  [since, until] = [`${since}T00`, until < today ? `${until}T23` : hour(0)];
  return { name, unit: "hour", since, until, steps: hoursOf(since, until), whole, compared };
}

/** The first day of a range and of what it is compared with. */
export const firstDay = ({ since, compared }) => [since, compared.before.since].sort()[0].slice(0, 10);

/** The moments between which a range lies, to the minute: `from`, and `until` where it is over. */
export function momentsOf({ since, until }) {
  const [from, to] = [`${since.slice(0, 10)}T${since.slice(11, 13) || "00"}:${since.slice(14) || "00"}`, until.slice(0, 10)];
  return { from, until: to < day() ? `${to}T23:59` : "" };
}

/** The range in words, for captions. */
export const rangeWords = (range) =>
  range.name === "custom"
    ? `${range.since.slice(0, 10)} to ${range.until.slice(0, 10)}`
    : range.name in MINUTES && range.unit === "hour"
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
