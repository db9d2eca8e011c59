// The spend of keys or teams in the last days, and their last day of use, as columns of their lists.

import { NOTHING, day, usd } from "./format.js";
import { Reports } from "./reports.js";
import { total } from "./sums.js";

const DAYS = 30;

/** Sums of the last days by name of the group (key or team), each with the last day of use. */
export async function usedLately(group, signal) {
  const rows = await new Reports(signal).by([group, "day"], day(DAYS - 1), day());
  return new Map([...Map.groupBy(rows, (row) => row[group])].map(([name, days]) => [name, { ...total(days), last: days.map((row) => row.day).sort().at(-1) }]));
}

/** The columns of rows with `used`. */
export const USED_COLUMNS = [
  { title: "30 days", hint: "The spend of the last 30 days", isNumber: true, sort: (row) => row.used?.cost_usd ?? 0, show: (row) => (row.used ? usd(row.used.cost_usd) : "$0") },
  { title: "Last used", hint: "The last day with a call, of the last 30", class: "moment", sort: (row) => row.used?.last ?? "", show: (row) => row.used?.last ?? NOTHING },
];
