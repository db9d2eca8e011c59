// How many requests the gateway refused in a range. They are no calls, and in no sum of usage.

import { address } from "./address.js";
import { get } from "./api.js";
import { momentsOf } from "./range.js";

const COUNTED = 1000;

/** The filters of the list of refusals for a range. */
export function refusalsOf(range, filters) {
  const { from, until } = momentsOf(range);
  return { ...filters, since: `${from}:00Z`, until: until && `${until}:59Z` };
}

/** Their `number`, whether there are more (`isMore`), and where they are listed (`href`); null where a filter excludes them all. */
export async function refusedIn(range, filters, signal) {
  if ("upstream" in filters) return null;
  const { data, next } = await get("refusals", { ...refusalsOf(range, filters), limit: COUNTED }, signal);
  return { number: data.length, isMore: next !== null, href: address("calls", "", { ...filters, outcome: "refused", ...momentsOf(range) }) };
}
