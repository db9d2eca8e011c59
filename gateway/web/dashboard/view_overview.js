// The first screen: what this month costs and what is wrong now; below, usage and its cost: one range, metric, grouping and set
// of filters, all in the address.

import { noteSettings, readAddress } from "./address.js";
import { get } from "./api.js";
import { DayChart } from "./chart.js";
import { fill, h, refill } from "./dom.js";
import { FILTERS, chips, readFilters } from "./filters.js";
import { firstSteps } from "./first_steps.js";
import { clock } from "./format.js";
import { GroupTable, hasPages } from "./group_table.js";
import { callsOf, canNarrow, canPair, groupControl, hasSteps, isGroup, thenControl } from "./grouping.js";
import { eventsInWords, readEvents } from "./events.js";
import { Headline, firstDayOf } from "./headline.js";
import { LatencyPanel } from "./latency.js";
import { livePanel } from "./live.js";
import { moneyPanel } from "./money.js";
import { poll } from "./poll.js";
import { problemPanel } from "./problems.js";
import { firstDay, rangeControl, rangeWords, readRange } from "./range.js";
import { refusedIn } from "./refused.js";
import { Reports, minutesNote } from "./reports.js";
import { STACKED_AT_MOST, largest, plain, stacked } from "./stack.js";
import { into } from "./states.js";
import { StepTable } from "./step_table.js";
import { MEASURES, dayInNumbers, inOneNumber, total, totals } from "./sums.js";
import { switcher } from "./switcher.js";
import { filterField } from "./table_parts.js";

const EVERY_MS = 60_000;
const TODAY_EVERY_MS = 15_000;

const QUICK = ["1h", "3h", "24h", "today"];

const titles = (things) => Object.fromEntries(Object.entries(things).map(([name, { title }]) => [name, title]));

export function overview(main, { feed, signal, query, isLive, can, role }) {
  const chosen = (name, known, usual) => (known.includes(query.get(name)) ? query.get(name) : usual);
  const state = {
    range: readRange(query),
    metric: chosen("metric", Object.keys(MEASURES), "cost"),
    group: isGroup(query.get("group")) ? query.get("group") : "model",
    then: query.get("then") ?? "", // the second group of the table; empty: none
    filters: readFilters(query),
    sums: null, // of the range and what it is compared with, as Reports.ofRange has them
    refused: null, // how many requests were refused in the range
    groups: null, // sums by group
    pairs: null, // sums by both groups; null: there is no second one
    split: null, // sums by step and group; null: too many groups
  };
  const reports = new Reports(signal);
  const headline = new Headline(hasPages(can), { hasSpend: !can("GET /admin/api/money") });
  const [sums, chartPlace, breakdown, chipPlace, welcome, thenPlace] = Array.from({ length: 6 }, () => h("div"));
  const note = h("p", { class: "note", role: "status" });
  const updated = h("small", { class: "note", id: "updated" });
  const chart = new DayChart();
  const byStep = new StepTable();
  const groupTable = new GroupTable(narrow, hasPages(can), (owner) => reports.keysOf(owner, state.range.whole, state.filters));
  const filter = filterField("Filter by name", (text) => groupTable.filter(text));

  function draw() {
    const { range } = state;
    const { steps } = state.sums;
    const known = new Map(steps.map((row) => [row[range.unit], row]));
    const rows = range.steps.map((name) => known.get(name) ?? { [range.unit]: name, ...total([]) });
    const measure = MEASURES[state.metric];
    const all = total(rows);
    const isNew = !state.groups.length && !Object.keys(state.filters).length && !total(state.sums.days).requests;
    fill(welcome, isNew && firstSteps(can));
    fill(sums, totals(all, { hasTiles: true }));
    headline.sums(state.sums, range, state.refused);
    if (!chartPlace.contains(chart.node)) fill(chartPlace, chart.node, byStep.node);
    const parts = state.split
      ? stacked(state.groups, state.split, state.group, measure, canNarrow(state.group) ? (name) => narrow(state.group, name) : null, state.isOfLargest)
      : plain(measure);
    fill(note, state.groups && !state.split ? `Too many of them by ${state.range.unit} (more than ${STACKED_AT_MOST}, or not kept so): the chart shows their sum.` : minutesNote(range, reports));
    chart.show(rows, {
      parts,
      format: measure.format,
      say: dayInNumbers,
      events: (row) => state.events.get(row[range.unit]) ?? [],
      total: [h("b", null, rangeWords(range)), ` ${inOneNumber(measure, all)}`],
      summary: `${measure.title} by ${range.unit}, ${rangeWords(range)}: ${dayInNumbers(all)}. The table below says the same.${eventsInWords(state.events, rows, range.unit)}`,
    });
    byStep.show(range.unit, rows.filter((row) => row.requests));
  }

  let wanted = 0;
  const look = () =>
    into(
      chartPlace,
      signal,
      async () => {
        const mine = ++wanted;
        state.range = readRange(readAddress().query); // hours go by
        const { range, group, filters } = state;
        const then = canPair(group, state.then, range.unit) ? state.then : "";
        const [sums, groups, pairs, refused, events] = await Promise.all([
          reports.ofRange(range, filters, can("GET /admin/api/money") ? firstDay(range) : firstDayOf(range)),
          reports.by([group], range.whole.since, range.whole.until, filters),
          then ? reports.by([group, then], range.whole.since, range.whole.until, filters) : null,
          can("GET /admin/api/refusals") ? refusedIn(range, filters, signal) : null,
          readEvents(can, range.unit, signal),
        ]);
        const isFew = (groups.length <= STACKED_AT_MOST || group === "owner") && hasSteps(group, range.unit);
        const canAskEach = FILTERS.includes(group) && hasSteps(group, range.unit);
        const split = isFew
          ? await reports.by([range.unit, group], range.since, range.until, filters)
          : canAskEach
            ? await reports.ofEach(largest(groups, group, MEASURES[state.metric]), group, range, filters)
            : null;
        if (mine !== wanted) return; // something else was chosen meanwhile
        Object.assign(state, { events, sums, groups, pairs, split, refused, isOfLargest: !isFew });
        draw();
        fill(updated, "updated at ", h("span", { class: "moment" }, clock(Date.now() / 1000).slice(0, 5)));
        refill(thenPlace, thenControl(group, then, range.unit, (chosen) => set({ then: (state.then = chosen) })));
        fill(breakdown, groupTable.show(pairs ? { ...state, groups: pairs, then } : { ...state, then: "" }));
        if (latency) headline.latency(await latency.look(state), range);
      },
      look,
    );

  /** Other settings: noted in the address, and shown. */
  function set(settings) {
    noteSettings("overview", settings);
    fill(chipPlace, chips(state.filters, (name) => narrow(name, null)));
    look();
  }

  function narrow(name, value) {
    if (!FILTERS.includes(name)) {
      location.hash = callsOf(name, value) ?? location.hash;
      return;
    }
    if (value === null) delete state.filters[name];
    else state.filters[name] = value;
    set({ [name]: value });
  }

  const latency = can("GET /admin/api/latency") && new LatencyPanel(signal, { isPart: role === "lead" });
  const live = isLive && livePanel(feed, signal);
  const linked = hasPages(can);
  const hasPage = (view) => linked(view.slice(0, -1));
  const money = can("GET /admin/api/money") && moneyPanel(signal, { isLinked: linked("team") });
  const problems = can("GET /admin/api/problems") && problemPanel(signal, { hasPage, tell: (runs) => live && live.noteRuns(runs) });
  fill(
    main,
    welcome,
    h("div", { class: "answers" }, money && money.node, problems && problems.node),
    h(
      "section",
      { "aria-labelledby": "usage-title" },
      h("div", { class: "bar" }, h("h2", { id: "usage-title" }, "Usage"), rangeControl(state.range, set), chipPlace, updated),
      headline.node,
      sums,
      h(
        "div",
        { class: "bar" },
        switcher("What the chart shows", titles(MEASURES), state.metric, (metric) => set({ metric: (state.metric = metric) })),
        h(
          "span",
          { class: "by" },
          "by",
          groupControl(state.group, (group) => {
            state.group = group;
            set({ group });
          }),
        ),
        note,
      ),
      h("div", { class: "panel" }, chartPlace),
    ),
    h(
      "section",
      { "aria-labelledby": "who-title" },
      h("div", { class: "bar" }, h("h2", { id: "who-title" }, "In this range"), thenPlace, filter),
      h("div", { class: "panel flush" }, breakdown),
    ),
    latency && latency.node,
    live && live.strip,
    live && live.upstreams,
  );
  fill(chipPlace, chips(state.filters, (name) => narrow(name, null)));
  let looked = 0;
  poll(
    async () => {
      if (!QUICK.includes(state.range.name) && Date.now() - looked < EVERY_MS) return true;
      const isDone = await look();
      if (isDone) looked = Date.now();
      return isDone;
    },
    TODAY_EVERY_MS,
    signal,
  );
  poll(() => headline.look(signal), EVERY_MS, signal);
  if (money) poll(money.look, EVERY_MS, signal);
  if (problems) poll(problems.look, TODAY_EVERY_MS, signal);
}
