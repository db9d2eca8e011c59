// Sums of the last days, asked for as rarely as can be: sums over many days of many keys are dear, and the days that are
// over hardly move. What ends late counts in the day in which it began, so yesterday is not over yet.

import { get } from "./api.js";
import { day } from "./format.js";
import { added } from "./sums.js";

export const DAYS = 30;
const PAST_EVERY_MS = 600_000;

export class LastDays {
  constructor(signal) {
    this.signal = signal;
    this.past = new Map(); // by group: {until, at, rows}
  }

  /** The rows by `group` of the last days, today among them. */
  async by(group) {
    const until = day(2);
    const known = this.past.get(group);
    const isKnown = known && known.until === until && Date.now() - known.at < PAST_EVERY_MS;
    const [past, recent] = await Promise.all([
      isKnown ? known.rows : this.ask({ group_by: group, since: day(DAYS - 1), until }),
      this.ask({ group_by: group, since: day(1) }),
    ]);
    if (!isKnown) this.past.set(group, { until, at: Date.now(), rows: past });
    return added([...past, ...recent], group);
  }

  /** The rows by `group` of today. */
  today(group) {
    return this.ask({ group_by: group, since: day() });
  }

  async ask(query) {
    return (await get("usage", query, this.signal)).data;
  }
}
