// The expected use, by one rule, and the comparison of a period with the one before. Pure.

import { stepOf } from "./format.js";
import { total } from "./sums.js";

const DAY_MS = 86_400_000;
const WEEK = 7;
const WEEKS = 4;
/** The days whose use a forecast is made of. */
export const LOOK_BACK_DAYS = WEEK * WEEKS;

const mean = (amounts) => amounts.reduce((all, amount) => all + amount, 0) / amounts.length;

/**
 * The use of a day: the mean of the last 7 whole days (`mean`), and of the cheapest and the dearest of the last four weeks (`low`,
 * `high`); without a whole day, the pace of today. `byDay`: amounts by day, a Map; `now`: a Date. The rule is that of
 * gateway/wings/answers/forecast.py.
 */
export function dailyUse(byDay, now) {
  const today = now.toISOString().slice(0, 10);
  const first = [...byDay.keys()].sort()[0] ?? today;
  const days = Array.from({ length: LOOK_BACK_DAYS }, (_, ago) => new Date(now.getTime() - (ago + 1) * DAY_MS).toISOString().slice(0, 10));
  const known = days.filter((day) => day >= first).map((day) => byDay.get(day) ?? 0);
  if (!known.length) {
    const share = (now.getTime() - Date.parse(`${today}T00:00:00Z`)) / DAY_MS;
    const pace = (byDay.get(today) ?? 0) / Math.max(share, 1 / 24);
    return { mean: pace, low: pace, high: pace };
  }
  const weeks = Array.from({ length: Math.ceil(known.length / WEEK) }, (_, place) => known.slice(place * WEEK, (place + 1) * WEEK));
  const means = weeks.filter((week, place) => week.length === WEEK || place === 0).map(mean);
  return { mean: means[0], low: Math.min(...means), high: Math.max(...means) };
}

/** The expected use at the end of a period, with `used` so far and this many days to come. */
export const atTheEnd = (used, daily, left_days) => ({ end: used + daily.mean * left_days, low: used + daily.low * left_days, high: used + daily.high * left_days });

/** The spend of a month at its end, in US dollars; `costs`: by day, a Map. */
export function forecast(costs, now) {
  const month = now.toISOString().slice(0, 7);
  const spent = [...costs].reduce((all, [day, cost]) => (day.startsWith(month) ? all + cost : all), 0);
  const ends = Date.UTC(now.getUTCFullYear(), now.getUTCMonth() + 1);
  return atTheEnd(spent, dailyUse(costs, now), (ends - now.getTime()) / DAY_MS);
}

/**
 * The expected use of a calendar window (a row of the quotas) at its end, with its use of a day (`daily`): `end`, `low` and `high`, and
 * `spent`: when it will be spent, a Date; null: not before its end. null where nothing is known or to be expected.
 */
export function expectedOf(row, daily, now = new Date()) {
  if (!daily || !["day", "week", "month"].includes(row.per) || row.used + row.reserved >= row.limit || !daily.mean) return null;
  const found = atTheEnd(row.used, daily, row.reset_s / 86_400);
  const left = row.limit - row.used - row.reserved;
  const spent = found.end < row.limit ? null : new Date(now.getTime() + (left / daily.mean) * DAY_MS);
  return { ...found, spent };
}

export const within = (rows, { since, until }) => rows.filter((row) => stepOf(row) >= since && stepOf(row) <= until);

/** The sums of a period (`now`) and of the one before (`before`), of rows by hour or day; null: it is too early to compare. */
export const comparison = (rows, { now, before }) =>
  now.until < now.since ? null : { now: total(within(rows, now)), before: total(within(rows, before)) };

/** The change from one number to another in percent: "+12 %", "−5 %"; "" where there is nothing to compare with. */
export function change(before, now) {
  if (!before) return "";
  const share = (100 * (now - before)) / before;
  const rounded = Math.abs(share) < 10 ? Math.abs(share).toFixed(1) : Math.round(Math.abs(share)).toLocaleString("en");
  return `${share < 0 ? "−" : "+"}${rounded} %`;
}
