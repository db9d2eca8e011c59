// How long answers take and which attempts fail, as a report: percentiles by model or upstream, and over time.

import { get } from "./api.js";
import { DayChart } from "./chart.js";
import { fill, h } from "./dom.js";
import { eventsInWords } from "./events.js";
import { NOTHING, axisCount, axisSpan, compact, count, many, percent, span } from "./format.js";
import { rangeWords } from "./range.js";
import { MINUTE } from "./reports.js";
import { plain, stacked } from "./stack.js";
import { StepTable } from "./step_table.js";
import { switcher } from "./switcher.js";
import { Table } from "./table.js";
import { p95Column, sumOf } from "./table_parts.js";

const GROUPS = ["model", "upstream"];
const OWNERS = ["key", "team", "person", "own"];
const MEASURED_CALLS = 2000; // of a key, a team or a person, as gateway/reports/latency.py has it

const times = (number, step) => (step ? axisSpan(number, step) : span(number));
const amount = (number, step) => (step ? axisCount(number, step) : compact(number));

// The measures of the chart: percentiles of a time, one number, or a count that is stacked by model or upstream.
const SHOWN = {
  first: { title: "First token", of: "first_token", format: times, words: "Time to first token: p50, p95 and p99" },
  duration: { title: "Duration", of: "duration", format: times, words: "Duration: p50, p95 and p99" },
  speed: { title: "Tokens/s", of: "tokens_per_s", at: [5, 50, 95], unit: "", format: amount, words: "Tokens per second: p5, p50 and p95" },
  attempts: { title: "Failed attempts", of: (row) => row.failed_attempts, format: amount, isCount: true, words: "Failed attempts, retried ones among them" },
  errors: { title: "Failed calls", of: (row) => row.errors, format: amount, isCount: true, words: "Failed calls" },
};

/** Percentiles as parts on top of each other: each begins where the one before ends. */
function percentiles({ of, at: places = [50, 95, 99], unit = "_s" }) {
  const at = (row, place) => row[`${of}_p${place}${unit}`] ?? 0;
  return places.map((place, number, all) => ({
    name: `p${place}`,
    class: `c${number + 1}`,
    of: (row) => Math.max(0, at(row, place) - (number ? at(row, all[number - 1]) : 0)),
  }));
}

function partsOf(shown, { rows, by, split }) {
  if (typeof shown.of === "string") return percentiles(shown);
  return split && shown.isCount ? stacked(rows, split, by, shown) : plain(shown);
}

const time = (title, name) => ({ title, isNumber: true, sort: (row) => row[name], show: (row) => span(row[name]) });
const p95 = (title, name, before) => (before ? p95Column(title, name, "Below it that of the period before", (row) => before(row)?.[name] ?? null) : time(title, name));
const speed = (place) => {
  const name = `tokens_per_s_p${place}`;
  return { title: `Tokens/s p${place}`, isNumber: true, sort: (row) => row[name], show: (row) => (row[name] === null ? NOTHING : count(row[name])) };
};

/** `before(row)`: the row of the period before. */
const columns = (group, before = null) => [
  { title: group[0].toUpperCase() + group.slice(1), class: "mono", isExact: true, sort: (row) => row[group], show: (row) => row[group].replace(/^(\d{4}-\d\d-\d\d)T/, "$1 ") || NOTHING },
  { title: "Requests", isNumber: true, sort: (row) => row.requests, show: (row) => count(row.requests) },
  time("First token p50", "first_token_p50_s"),
  p95("First token p95", "first_token_p95_s", before),
  time("First token p99", "first_token_p99_s"),
  time("Duration p50", "duration_p50_s"),
  p95("Duration p95", "duration_p95_s", before),
  time("Duration p99", "duration_p99_s"),
  ...[5, 50].map(speed),
  { title: "Failed", isNumber: true, sort: (row) => row.errors, show: (row) => [count(row.errors), row.errors > 0 && h("small", null, ` ${percent(row.errors, row.requests)}`)] },
  { title: "Failed attempts", hint: "Attempts at upstreams that came to nothing, retried ones among them", isNumber: true, sort: (row) => row.failed_attempts, show: (row) => count(row.failed_attempts) },
];

const inWords = (row) =>
  [
    row.first_token_count &&
      `first token p50 ${span(row.first_token_p50_s)}, p95 ${span(row.first_token_p95_s)}, p99 ${span(row.first_token_p99_s)}`,
    row.duration_count && `took p50 ${span(row.duration_p50_s)}, p95 ${span(row.duration_p95_s)}, p99 ${span(row.duration_p99_s)}`,
    row.tokens_per_s_count && `tokens/s p5 ${count(row.tokens_per_s_p5)}, p50 ${count(row.tokens_per_s_p50)}, p95 ${count(row.tokens_per_s_p95)}`,
    `${many(row.errors, "failed call")}, ${many(row.failed_attempts, "failed attempt")}`,
  ]
    .filter(Boolean)
    .join(" · ");

/** The section; `isPart`: the user sees a team or own keys only. `look(state)` shows it for the range, group, filters and events of a page, and returns the row of everything. */
export class LatencyPanel {
  constructor(signal, { id = "latency-title", heading = "h2", isPart = false } = {}) {
    Object.assign(this, { signal, isPart });
    this.shown = "first";
    this.chart = new DayChart();
    this.byStep = new StepTable(
      (unit) => new Table(columns(unit), { caption: `Latency by ${unit}`, name: (row) => row[unit], sort: 0 }),
    );
    this.place = h("div");
    this.note = h("p", { class: "note" });
    const titles = Object.fromEntries(Object.entries(SHOWN).map(([name, { title }]) => [name, title]));
    this.node = h(
      "section",
      { "aria-labelledby": id },
      h(heading, { id }, "Latency and failures"),
      this.note,
      switcher("What the chart of latency shows", titles, this.shown, (name) => {
        this.shown = name;
        if (this.last) this.draw();
      }),
      h("div", { class: "panel" }, this.chart.node, this.byStep.node),
      h("div", { class: "panel flush" }, this.place),
    );
  }

  async ask(groups, { since, until }, filters) {
    if (since.length === MINUTE.length) return (await get("minutes", { group_by: groups.join(",") || ",", since, until, ...filters }, this.signal)).data;
    const narrowed = GROUPS.filter((name) => name in filters);
    const group_by = [...new Set([...groups, ...narrowed])].join(",") || ",";
    const owner = Object.fromEntries(OWNERS.filter((name) => name in filters).map((name) => [name, filters[name]]));
    const { data } = await get("latency", { group_by, since, until, ...owner }, this.signal);
    return data.filter((row) => narrowed.every((name) => row[name] === filters[name]));
  }

  async look({ range, group, filters, events = new Map() }) {
    const by = GROUPS.includes(group) ? group : "model";
    const [rows, steps, before, all, allBefore] = await Promise.all([
      this.ask([by], range.whole, filters),
      this.ask([range.unit], range, filters),
      this.before([by], range, filters),
      this.whole(range, filters),
      this.before([], range, filters),
    ]);
    this.known = { all, before: new Map([[null, allBefore[0] ?? null], ...before.map((row) => [row[by], row])]) };
    if (this.table?.group !== by) {
      this.table = Object.assign(
        new Table(columns(by, (row) => this.known.before.get(row.isSum ? null : row[by])), {
          caption: `Latency by ${by}`,
          name: (row) => row[by],
          sort: 1,
          total: (found) => (found.length === this.last.rows.length ? { ...this.known.all, isSum: true } : sumOf("requests", "errors", "failed_attempts")(found)),
        }),
        { group: by },
      );
      fill(this.place, this.table.node);
    }
    const isOwned = range.unit !== "minute" && (this.isPart || OWNERS.some((name) => name in filters));
    fill(this.note, isOwned ? `Times are those of the newest ${count(MEASURED_CALLS)} calls at most.` : "");
    this.byStep.show(range.unit, steps);
    this.last = { range, steps, rows, by, filters, events, split: null };
    this.table.show(rows);
    await this.draw();
    return all && { ...all, before: allBefore[0] ?? null };
  }

  async draw() {
    const [last, shown] = [this.last, SHOWN[this.shown]];
    const { range, steps, by, filters, events } = last;
    if (shown.isCount) last.split ??= await this.ask([range.unit, by], range, filters).catch(() => null); // then their sum is shown
    if (last !== this.last || shown !== SHOWN[this.shown]) return; // something else was chosen meanwhile
    const { format, words } = shown;
    const known = new Map(steps.map((row) => [row[range.unit], row]));
    const drawn = range.steps.map((name) => known.get(name) ?? { [range.unit]: name });
    this.chart.show(drawn, {
      parts: partsOf(shown, last),
      isOneNumber: !shown.isCount,
      format,
      say: (row) => (row.requests ? inWords(row) : "no measurement"),
      events: (row) => events.get(row[range.unit]) ?? [],
      total: `${words}, by ${range.unit}`,
      summary: `${words}, by ${range.unit}, ${rangeWords(range)}. The table below says the same.${eventsInWords(events, drawn, range.unit)}`,
    });
  }

  /** The same of the period before, without a running hour or day; nothing where it is too early to compare. */
  async before(groups, { compared: { now, before } }, filters) {
    return now.until < now.since ? [] : this.ask(groups, before, filters);
  }

  /** Without groups: one row, of all that the filters leave. */
  async whole(range, filters) {
    return (await this.ask([], range.whole, filters))[0] ?? null;
  }
}
