// How long answers take and which attempts fail, as a report: percentiles by model or upstream, and over time.

import { get } from "./api.js";
import { DayChart } from "./chart.js";
import { fill, h } from "./dom.js";
import { NOTHING, count, many, percent, span } from "./format.js";
import { rangeWords } from "./range.js";
import { StepTable } from "./step_table.js";
import { Table } from "./table.js";

const GROUPS = ["model", "upstream"];

const time = (title, name) => ({ title, isNumber: true, sort: (row) => row[name], show: (row) => span(row[name]) });
const speed = (row) => (row.tokens_per_s_p50 === null ? NOTHING : count(row.tokens_per_s_p50));

const columns = (group) => [
  { title: group[0].toUpperCase() + group.slice(1), class: "mono", isExact: true, sort: (row) => row[group], show: (row) => row[group] || NOTHING },
  { title: "Requests", isNumber: true, sort: (row) => row.requests, show: (row) => count(row.requests) },
  time("First token p50", "first_token_p50_s"),
  time("p95", "first_token_p95_s"),
  time("p99", "first_token_p99_s"),
  time("Took p50", "duration_p50_s"),
  time("Took p95", "duration_p95_s"),
  { title: "Tokens/s p50", isNumber: true, sort: (row) => row.tokens_per_s_p50, show: speed },
  { title: "Failed", isNumber: true, sort: (row) => row.errors, show: (row) => [count(row.errors), h("small", null, ` ${percent(row.errors, row.requests)}`)] },
  { title: "Failed attempts", hint: "Attempts at upstreams that came to nothing, retried ones among them", isNumber: true, sort: (row) => row.failed_attempts, show: (row) => count(row.failed_attempts) },
];

/** The section; `look(state)` shows it for the range, group and filters of a page, and returns the row of everything. */
export class LatencyPanel {
  constructor(signal) {
    this.signal = signal;
    this.chart = new DayChart();
    this.byStep = new StepTable(
      (unit) => new Table(columns(unit), { caption: `Latency by ${unit}`, name: (row) => row[unit], sort: 0 }),
    );
    this.place = h("div");
    this.note = h("p", { class: "note" });
    this.node = h(
      "section",
      { "aria-labelledby": "latency-title" },
      h("h2", { id: "latency-title" }, "Latency"),
      this.note,
      h("div", { class: "panel" }, this.chart.node, this.byStep.node),
      h("div", { class: "panel flush" }, this.place),
    );
  }

  async ask(groups, { since, until }, filters) {
    const narrowed = GROUPS.filter((name) => name in filters);
    const { data } = await get("latency", { group_by: [...new Set([...groups, ...narrowed])].join(",") || ",", since, until }, this.signal);
    return data.filter((row) => narrowed.every((name) => row[name] === filters[name]));
  }

  async look({ range, group, filters }) {
    const by = GROUPS.includes(group) ? group : "model";
    const only = Object.fromEntries(GROUPS.filter((name) => name in filters).map((name) => [name, filters[name]]));
    const [rows, steps] = await Promise.all([this.ask([by], range, only), this.ask([range.unit], range, only)]);
    if (this.table?.group !== by) {
      this.table = Object.assign(new Table(columns(by), { caption: `Latency by ${by}`, name: (row) => row[by], sort: 1 }), { group: by });
      fill(this.place, this.table.node);
    }
    this.table.show(rows);
    fill(this.note, "key" in filters || "team" in filters ? "Measured over all keys and teams." : "");
    this.byStep.show(range.unit, steps);
    const known = new Map(steps.map((row) => [row[range.unit], row]));
    this.chart.show(
      range.steps.map((name) => known.get(name) ?? { [range.unit]: name, first_token_p95_s: null, first_token_count: 0 }),
      {
        parts: [{ name: "p95", class: "c1", of: (row) => row.first_token_p95_s }],
        spell: span,
        say: (row) =>
          row.first_token_count
            ? `first token p50 ${span(row.first_token_p50_s)}, p95 ${span(row.first_token_p95_s)}, p99 ${span(row.first_token_p99_s)} · ${many(row.failed_attempts, "failed attempt")}`
            : "none measured",
        total: `Time to first token, 95th percentile by ${range.unit}`,
        summary: `Time to first token, 95th percentile by ${range.unit}, ${rangeWords(range)}. The table below has it by ${by}.`,
      },
    );
    return rows.length ? this.whole(range, only) : null;
  }

  /** Without groups: one row, of all that the filters leave. */
  async whole(range, only) {
    return (await this.ask([], range, only))[0] ?? null;
  }
}
