// The daily use of keys and teams, from which it is expected what their windows will hold at the end.

import { day } from "./format.js";
import { Reports } from "./reports.js";
import { LOOK_BACK_DAYS, dailyUse } from "./spending.js";

const USED = { requests: (row) => row.requests, tokens: (row) => row.total_tokens, usd: (row) => row.cost_usd ?? 0 };
const GROUPS = ["key", "team"];

export class Paces {
  constructor(signal) {
    this.reports = new Reports(signal);
  }

  /** The same rows, those of keys and teams with what they use in a day (`daily`). `filters`: as those of the usage report;
   * `wanted`: of which groups, where the filters leave all of their use. */
  async added(rows, filters = {}, wanted = GROUPS) {
    const calendar = rows.filter((row) => ["day", "week", "month"].includes(row.per) && !row.model);
    const groups = wanted.filter((group) => calendar.some((row) => row.scope.startsWith(`${group}:`)));
    const found = await Promise.all(groups.map((group) => this.reports.by([group, "day"], day(LOOK_BACK_DAYS), day(), filters)));
    const used = new Map(groups.map((group, place) => [group, Map.groupBy(found[place], (row) => row[group])]));
    return rows.map((row) => {
      const [group, ...rest] = row.scope.split(":");
      const days = calendar.includes(row) ? used.get(group)?.get(rest.join(":")) : null;
      return days && USED[row.unit] ? { ...row, daily: dailyUse(new Map(days.map((each) => [each.day, USED[row.unit](each)])), new Date()) } : row;
    });
  }
}
