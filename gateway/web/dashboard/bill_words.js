// Sums of bills, the causes of their differences, and what is left of an account, in words.

import { h } from "./dom.js";
import { count, day, many, signed, stepInWords, usd } from "./format.js";
import { monthStart, shifted } from "./range.js";
import { dailyUse } from "./spending.js";
import { sumOf } from "./table_parts.js";

const DAY_MS = 86_400_000;
const FAR_DAYS = 3650;

export const unexplained = (row) => row.unexplained_usd ?? 0;

const causeName = (cause) => cause.replaceAll("_", " ");

const rounded = (amount) => Math.round(amount * 1e9) / 1e9;

/** The amounts of rows, added up to the billionth of a dollar. */
export function sumOfBills(rows) {
  const names = [...new Set(rows.flatMap((row) => Object.keys(row).filter((name) => typeof row[name] === "number")))];
  return Object.fromEntries(Object.entries(sumOf(...names)(rows)).map(([name, sum]) => [name, rounded(sum ?? 0)]));
}

/** The causes of a row in a few words, the largest first. */
export const causesInWords = (row, causes) =>
  Object.keys(causes)
    .map((cause) => [cause, row[`${cause}_usd`] ?? 0])
    .filter(([, amount]) => amount)
    .sort((one, other) => Math.abs(other[1]) - Math.abs(one[1]))
    .map(([cause, amount]) => `${causeName(cause)} ${signed(amount, usd)}`)
    .join(", ");

/** The number of requests on both sides of a row; of a line item that is no model's, what is stored or used. */
export function quantityInWords({ bill_requests, recorded_requests, bill_storage_bytes, bill_sessions }) {
  if (bill_storage_bytes) return `${count(bill_storage_bytes)} bytes stored`;
  return bill_sessions ? many(bill_sessions, "session") : `${count(bill_requests)} / ${count(recorded_requests)}`;
}

/** The causes of a difference with their meaning. `amounts`: by cause. */
export function causeList(amounts, causes) {
  const found = Object.entries(amounts).sort((one, other) => Math.abs(other[1]) - Math.abs(one[1]));
  if (!found.length) return h("p", { class: "note" }, "Bill and records agree.");
  return h(
    "ul",
    { class: "causes" },
    found.map(([cause, amount]) => h("li", { data: { cause, value: amount } }, h("b", { class: "figure-small" }, signed(amount, usd)), h("span", null, h("b", null, causeName(cause)), `: ${causes[cause]}`))),
  );
}

/** When an amount ends at the pace of the last 7 days: "Friday, 4 Dec", with the range of the last four weeks; `until`: a day after which
 * it does not matter, because there is more. */
function ends(rest, spent, until = null) {
  const now = new Date();
  const daily = dailyUse(spent, now);
  if (!daily.mean) return "nothing is spent of it.";
  if (until !== null && now.getTime() + (rest / daily.mean) * DAY_MS > Date.parse(until)) return "at the pace of the last 7 days it lasts until the month ends.";
  const when = (pace) => stepInWords(new Date(now.getTime() + Math.min(FAR_DAYS, rest / pace) * DAY_MS).toISOString().slice(0, 10));
  const [first, last] = [when(daily.high), daily.low ? `to ${when(daily.low)}` : "or later"];
  return `at the pace of the last 7 days it ends on ${when(daily.mean)}${`to ${first}` === last ? "." : ` (${first} ${last}).`}`;
}

/** The balance or the limit of an account and its end, as a paragraph; null: its provider states none. */
export function accountInWords({ upstream, account: { left_usd, limit_usd } }, rows) {
  const spent = new Map([...Map.groupBy(rows, (row) => row.day)].map(([name, some]) => [name, sumOfBills(some).bill_usd]));
  if (left_usd !== null) return h("p", { data: { account: upstream } }, "Balance of the account: ", h("b", { data: { value: left_usd } }, usd(left_usd)), left_usd > 0 ? ` left; ${ends(left_usd, spent)}` : ": it is spent.");
  if (limit_usd === null) return null;
  const used = [...spent].reduce((all, [name, amount]) => (name.startsWith(day().slice(0, 7)) ? all + amount : all), 0);
  return h("p", { data: { account: upstream } }, "Limit of the account: ", h("b", { data: { value: limit_usd } }, usd(limit_usd)), ` per month, ${usd(used)} of it is billed; `, used < limit_usd ? ends(limit_usd - used, spent, monthStart(shifted(monthStart(day()), 31))) : "it is spent.");
}
