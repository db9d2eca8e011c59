// The expected cost of a month, and the comparison of a period with the one before. Pure.

import { total } from "./sums.js";

const DAY_MS = 86_400_000;
const LOOK_BACK_DAYS = 7;

/**
 * The spend of a month at its end, in US dollars: what is spent, and for the time that is left the mean of the last
 * whole days, seven at most. `costs`: US dollars by day; `now`: a Date. Without a whole day, the pace of today.
 */
export function forecast(costs, now) {
  const today = now.toISOString().slice(0, 10);
  const spent = [...costs].reduce((all, [day, cost]) => (day.slice(0, 7) === today.slice(0, 7) ? all + cost : all), 0);
  const ends = Date.UTC(now.getUTCFullYear(), now.getUTCMonth() + 1);
  const left_days = (ends - now.getTime()) / DAY_MS;
  const first = [...costs.keys()].sort()[0] ?? today;
  const whole = [];
  for (let before = 1; before <= LOOK_BACK_DAYS; before++) {
    const day = new Date(now.getTime() - before * DAY_MS).toISOString().slice(0, 10);
    if (day >= first) whole.push(costs.get(day) ?? 0);
  }
  const today_share = (now.getTime() - Date.parse(`${today}T00:00:00Z`)) / DAY_MS;
  const pace = whole.length
    ? whole.reduce((all, cost) => all + cost, 0) / whole.length
    : (costs.get(today) ?? 0) / Math.max(today_share, 1 / 24);
  return spent + pace * left_days;
}

const FIRST_DAY = {
  day: (now) => [now.getUTCFullYear(), now.getUTCMonth(), now.getUTCDate()],
  week: (now) => [now.getUTCFullYear(), now.getUTCMonth(), now.getUTCDate() - ((now.getUTCDay() + 6) % 7)],
  month: (now) => [now.getUTCFullYear(), now.getUTCMonth(), 1],
};
const SHORTEST = 0.02; // of a window: a pace of less is no forecast

/**
 * When a calendar window (a row of the quotas) will be spent at the pace since it began: a Date; null where it will not
 * be, is already, or where it is too early for a forecast.
 */
export function spentAt(row, now = new Date()) {
  const taken = row.used + row.reserved;
  if (!FIRST_DAY[row.per] || !row.used || taken >= row.limit) return null;
  const starts = Date.UTC(...FIRST_DAY[row.per](now));
  const ends = now.getTime() + row.reset_s * 1000;
  const elapsed = now.getTime() - starts;
  if (elapsed < SHORTEST * (ends - starts)) return null;
  const at = now.getTime() + ((row.limit - taken) * elapsed) / row.used;
  return at < ends ? new Date(at) : null;
}

export const within = (rows, { since, until }) => rows.filter((row) => (row.hour ?? row.day) >= since && (row.hour ?? row.day) <= until);

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
