// How many requests the gateway refused in a range. They are no calls, and in no sum of usage.

import { address } from "./address.js";
import { get } from "./api.js";
import { day } from "./format.js";
import { momentsOf } from "./range.js";

const COUNTED = 1000;
const KEPT_DAYS = 7; // as gateway/store/refusals.py has it

/** Whether a range began before the oldest refusal that is kept. */
export const isCut = ({ since }) => since.slice(0, 10) < day(KEPT_DAYS);

/** The filters of the list of refusals for a range. */
export function refusalsOf(range, filters) {
  const { from, until } = momentsOf(range);
  return { ...filters, since: `${from}:00Z`, until: until && `${until}:59Z` };
}

/** Their `number`, whether there are more (`isMore`), whether the range began before what is kept (`isCut`), and where they are
 * listed (`href`); null where a filter excludes them all. */
export async function refusedIn(range, filters, signal) {
  if ("upstream" in filters) return null;
  const { data, next } = await get("refusals", { ...refusalsOf(range, filters), limit: COUNTED }, signal);
  return { number: data.length, isMore: next !== null, isCut: isCut(range), href: address("calls", "", { ...filters, outcome: "refused", ...momentsOf(range) }) };
}
