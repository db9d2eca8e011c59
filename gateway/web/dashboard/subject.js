// The usage of one key, team, person, model or upstream: its sums over time and their split, latency, and refusals.

import { address, detailAddress, noteSettings, readAddress } from "./address.js";
import { get } from "./api.js";
import { DayChart } from "./chart.js";
import { fill, h } from "./dom.js";
import { eventsInWords, readEvents } from "./events.js";
import { count, many } from "./format.js";
import { GroupTable, hasPages } from "./group_table.js";
import { LatencyPanel } from "./latency.js";
import { momentsOf, rangeControl, rangeWords, readRange } from "./range.js";
import { REFUSAL_COLUMNS } from "./refusal_rows.js";
import { isCut, refusalsOf } from "./refused.js";
import { Reports } from "./reports.js";
import { change, comparison } from "./spending.js";
import { STACKED_AT_MOST, plain, stacked } from "./stack.js";
import { into } from "./states.js";
import { StepTable } from "./step_table.js";
import { MEASURES, dayInNumbers, inOneNumber, total, totals } from "./sums.js";
import { switcher } from "./switcher.js";
import { Table } from "./table.js";

// The splits of each; the first one is shown first.
const SPLITS = { key: ["model", "upstream"], team: ["key", "owner", "model", "upstream"], person: ["model", "key", "team", "upstream"], model: ["key", "owner", "team", "upstream"], upstream: ["model", "key", "owner", "team"] };
const REFUSALS_READ = 200;
const titles = (things) => Object.fromEntries(Object.entries(things).map(([name, { title }]) => [name, title]));
const section = (name, title, ...more) =>
  h("section", { class: "subject", "aria-labelledby": `subject-${name}` }, h("h3", { id: `subject-${name}` }, title), more);

/** How often requests of `subject` were refused by the gateway, by error code, and the newest of them. */
class Refusals {
  constructor(subject, signal) {
    Object.assign(this, { subject, signal });
    this.reasons = h("div");
    this.table = new Table(REFUSAL_COLUMNS, {
      caption: "Newest refusals",
      name: (row) => row.id,
      sort: null,
      href: (row) => detailAddress(row.id),
      none: "No request was refused by the gateway in this time.",
    });
    this.node = section("refusals", "Refused by the gateway", this.reasons, h("div", { class: "panel flush" }, this.table.node));
  }

  async look(range) {
    const { group, name } = this.subject;
    const { data, next } = await get("refusals", { ...refusalsOf(range, { [group]: name }), limit: REFUSALS_READ }, this.signal);
    const codes = Map.groupBy(data, (row) => row.code ?? `status ${row.status}`);
    fill(
      this.reasons,
      data.length > 0 && h("p", { class: "note" }, next ? `The newest ${count(REFUSALS_READ)}, by reason:` : `${many(data.length, "request")}${isCut(range) ? " of the last 7 days" : ""}, by reason:`),
      h(
        "ul",
        { class: "reasons" },
        [...codes].sort((one, other) => other[1].length - one[1].length).map(([code, rows]) =>
          h("li", { data: { reason: code } }, h("b", { class: "figure-small" }, count(rows.length)), h("span", null, h("a", { href: address("calls", "", { [group]: name, outcome: "refused", code, ...momentsOf(range) }) }, h("code", null, code)))),
        ),
      ),
    );
    this.table.show(data);
  }
}

/** How sums compare with those of the period before, in words. */
function compared(rows, range) {
  const found = comparison(rows, range.compared);
  if (!found) return h("p", { class: "note" }, "too early to compare with the period before");
  const { before, now } = found;
  const changes = [["requests", before.requests, now.requests], ["cost", before.cost_usd, now.cost_usd ?? 0]]
    .map(([name, then, since]) => [name, change(then, since)])
    .filter(([, said]) => said)
    .map(([name, said]) => `${said} ${name}`);
  return h("p", { class: "note", data: { compared: before.requests } }, changes.length ? `${changes.join(", ")} compared with the period before` : "no requests in the period before");
}

/** The report about `subject` (`group` and `name`), on the page of `view`; `look()` reads it again; `calls` leads to its calls. */
export class SubjectReport {
  constructor(subject, view, { can }, signal) {
    const { query } = readAddress();
    Object.assign(this, { subject, view, can, signal });
    this.filters = { [subject.group]: subject.name };
    this.metric = query.get("metric") in MEASURES ? query.get("metric") : "cost";
    const splits = SPLITS[subject.group];
    this.split = splits.includes(query.get("group")) ? query.get("group") : splits[0];
    this.reports = new Reports(signal);
    this.chart = new DayChart();
    this.byStep = new StepTable();
    this.groups = new GroupTable(null, hasPages(can), (owner) => this.reports.keysOf(owner, readRange(readAddress().query).whole, this.filters));
    [this.sums, this.place, this.table] = [h("div"), h("div"), h("div")];
    this.latency = can("GET /admin/api/latency") ? new LatencyPanel(signal, { id: "subject-latency", heading: "h3" }) : null;
    this.refusals = subject.group === "upstream" ? null : new Refusals(subject, signal);
    this.calls = h("a", { class: "button", href: address("calls", "", this.filters) }, "Its calls");
    this.node = h("div", { class: "subject-report" }, this.usage(splits, readRange(query)), this.latency?.node, this.refusals?.node);
  }

  usage(splits, range) {
    return section(
      "usage",
      "Usage",
      rangeControl(range, (settings) => this.set(settings)),
      this.sums,
      h(
        "div",
        { class: "bar" },
        switcher("What the chart shows", titles(MEASURES), this.metric, (metric) => this.set({ metric })),
        h(
          "span",
          { class: "by" },
          "by",
          switcher("Group by", Object.fromEntries(splits.map((name) => [name, name])), this.split, (group) => this.set({ group })),
        ),
      ),
      h("div", { class: "panel" }, this.place),
      h("div", { class: "panel flush" }, this.table),
    );
  }

  set(settings) {
    this.metric = settings.metric ?? this.metric;
    this.split = settings.group ?? this.split;
    noteSettings(this.view, settings);
    this.look();
  }

  look() {
    return into(this.place, this.signal, () => this.read(), () => this.look());
  }

  async read() {
    const mine = (this.wanted = (this.wanted ?? 0) + 1);
    const range = readRange(readAddress().query); // hours go by
    const by = (groups, { since, until }) => this.reports.by(groups, since, until, this.filters);
    const [sums, groups, events] = await Promise.all([this.reports.ofRange(range, this.filters), by([this.split], range.whole), readEvents(this.can, range.unit, this.signal)]);
    const split = groups.length <= STACKED_AT_MOST ? await by([range.unit, this.split], range) : null;
    if (mine !== this.wanted) return; // something else was chosen meanwhile
    this.draw(range, sums, groups, split, events);
    await Promise.all([
      this.latency?.look({ range, group: this.split, filters: this.filters, events }),
      this.refusals?.look(range),
    ]);
  }

  draw(range, sums, groups, split, events) {
    this.calls.href = address("calls", "", { ...this.filters, ...momentsOf(range) });
    const known = new Map(sums.steps.map((row) => [row[range.unit], row]));
    const rows = range.steps.map((name) => known.get(name) ?? { [range.unit]: name, ...total([]) });
    const [all, measure] = [total(rows), MEASURES[this.metric]];
    fill(this.sums, totals(all), compared(sums.compared, range));
    if (!this.place.contains(this.chart.node)) fill(this.place, this.chart.node, this.byStep.node);
    this.byStep.show(range.unit, rows.filter((row) => row.requests));
    this.chart.show(rows, {
      parts: split ? stacked(groups, split, this.split, measure) : plain(measure),
      format: measure.format,
      say: dayInNumbers,
      events: (row) => events.get(row[range.unit]) ?? [],
      total: [h("b", null, rangeWords(range)), ` ${inOneNumber(measure, all)}`],
      summary: `${measure.title} by ${range.unit}, ${rangeWords(range)}: ${dayInNumbers(all)}. The table below says the same.${eventsInWords(events, rows, range.unit)}`,
    });
    fill(this.table, this.groups.show({ groups, group: this.split, metric: this.metric }));
  }
}
