// A member's own page: what is spent, what is left and when it is free again, the own keys, refusals, how to connect.

import { detailAddress, noteSettings, readAddress } from "./address.js";
import { get, token } from "./api.js";
import { DayChart } from "./chart.js";
import { connectPanel } from "./connect.js";
import { fill, h, refill } from "./dom.js";
import { NOTHING } from "./format.js";
import { GroupTable, hasPages } from "./group_table.js";
import { Headline, firstDayOf } from "./headline.js";
import { editKey } from "./key_form.js";
import { LatencyPanel } from "./latency.js";
import { showKept } from "./kept_content.js";
import { keyPanel, sharedPanel, sharedWindows } from "./own_keys.js";
import { Paces } from "./paces.js";
import { poll } from "./poll.js";
import { RATES } from "./price_columns.js";
import { rangeControl, rangeWords, readRange } from "./range.js";
import { REFUSAL_COLUMNS } from "./refusal_rows.js";
import { refusedIn } from "./refused.js";
import { Reports } from "./reports.js";
import { stacked } from "./stack.js";
import { empty, into } from "./states.js";
import { StepTable } from "./step_table.js";
import { MEASURES, dayInNumbers, inOneNumber, total, totals } from "./sums.js";
import { switcher } from "./switcher.js";
import { Table } from "./table.js";
import { modelsToCall, testCall } from "./test_call.js";

const EVERY_MS = 30_000;
const REFUSALS_SHOWN = 20;
const MODEL_COLUMNS = [
  { title: "Model", class: "mono", sort: (model) => model.id, show: (model) => model.id },
  { title: "Endpoints", sort: (model) => model.endpoints?.join() ?? "", show: (model) => model.endpoints?.join(", ") ?? NOTHING },
  ...RATES,
];
const METRICS = { cost: "Cost", tokens: "Tokens", requests: "Requests" };

export function mine(main, context) {
  const { signal, query, can, publicUrl, role } = context;
  const isMember = role === "member" || role === "key";
  const own = isMember ? {} : { own: "true" };
  const state = { range: readRange(query), metric: query.get("metric") in METRICS ? query.get("metric") : "cost" };
  const reports = new Reports(signal);
  const paces = new Paces(signal);
  const headline = new Headline(hasPages(can));
  const chart = new DayChart();
  const byStep = new StepTable();
  const groups = new GroupTable();
  const latency = new LatencyPanel(signal, { isPart: true });
  const [sums, chartPlace, modelPlace, keysPlace, refusalPlace] = Array.from({ length: 5 }, () => h("div"));
  const refusals = new Table(REFUSAL_COLUMNS, {
    caption: "Your refused calls",
    name: (row) => row.id,
    sort: null,
    href: (row) => detailAddress(row.id),
    none: "None of your calls was refused in the last 7 days.",
  });

  const models = token.get() ? modelsToCall(token.get()) : null; // a person who signed in has no secret here
  const mayCall = h("div", { class: "may-call", hidden: true });
  models?.then((found) => {
    mayCall.hidden = !found.length;
    const table = new Table(MODEL_COLUMNS, { caption: "Models that you may call", name: (model) => model.id, sort: null });
    fill(mayCall, h("h3", null, "Models that you may call"), h("p", { class: "note" }, "Prices in US dollars per million tokens."), table.node);
    table.show(found);
  }, () => {});

  const lookAtUsage = () =>
    into(
      chartPlace,
      signal,
      async () => {
        state.range = readRange(readAddress().query); // hours go by
        const { range, metric } = state;
        const [found, byModel, split, refused] = await Promise.all([
          reports.ofRange(range, own, firstDayOf(range)),
          reports.by(["model"], range.whole.since, range.whole.until, own),
          reports.by([range.unit, "model"], range.since, range.until, own),
          refusedIn(range, own, signal),
        ]);
        const known = new Map(found.steps.map((row) => [row[range.unit], row]));
        const shown = range.steps.map((name) => known.get(name) ?? { [range.unit]: name, ...total([]) });
        const all = total(shown);
        arrange(total(found.days).requests === 0 && all.requests === 0);
        fill(sums, totals(all, { hasTiles: true }));
        headline.sums(found, range, refused);
        if (!chartPlace.contains(chart.node)) fill(chartPlace, chart.node, byStep.node);
        byStep.show(range.unit, shown.filter((row) => row.requests));
        chart.show(shown, {
          parts: stacked(byModel, split, "model", MEASURES[metric]),
          format: MEASURES[metric].format,
          say: dayInNumbers,
          total: [h("b", null, rangeWords(range)), ` ${inOneNumber(MEASURES[metric], all)}`],
          summary: `${MEASURES[metric].title} by ${range.unit} and model, ${rangeWords(range)}: ${dayInNumbers(all)}.`,
        });
        fill(modelPlace, groups.show({ groups: byModel, group: "model", metric }));
        headline.latency(await latency.look({ range, group: "model", filters: own }), range);
      },
      lookAtUsage,
    );

  let teams = []; // in which she has an active key: only there may she make another
  const newKey = h("button", { type: "button", class: "primary", id: "new-key", hidden: true, onclick: () => editKey(null, lookAtKeys, { ...context, teams }) }, "New key");

  const lookAtKeys = () =>
    into(
      keysPlace,
      signal,
      async () => {
        const [{ data: keys }, { data: windows }] = await Promise.all([get("keys", own, signal), get("quotas", own, signal).then(async ({ data }) => ({ data: await paces.added(data, own, ["key"]) }))]);
        teams = [...new Set(keys.filter((key) => key.status === "active" && key.team).map((key) => key.team))].sort();
        newKey.hidden = !teams.length;
        const shared = await sharedWindows(keys, own, signal);
        headline.windows([...windows.filter((row) => row.key !== null), ...shared]);
        const of = (key) => windows.filter((row) => row.scope === `key:${key.id}`);
        refill(
          keysPlace,
          keys.length
            ? [
                keys.map((key) => keyPanel(key, of(key), context, lookAtKeys)),
                [...Map.groupBy(shared, (row) => row.scope).values()].map(sharedPanel),
              ]
            : empty("No key yet", "A key with you as its owner appears here. Ask your lead or an operator for one."),
        );
      },
      lookAtKeys,
    );

  const keptNote = h("div", { class: "banner", id: "kept-content", role: "status", hidden: true });
  const lookAtKept = () => showKept(keptNote, own, signal);

  const lookAtRefusals = () =>
    into(
      refusalPlace,
      signal,
      async () => {
        if (!refusalPlace.contains(refusals.node)) fill(refusalPlace, refusals.node);
        refusals.show((await get("refusals", { limit: REFUSALS_SHOWN, ...own }, signal)).data);
      },
      lookAtRefusals,
    );

  const welcome = h("p", { class: "note", id: "no-calls-yet" }, "No call yet. Your usage and its cost appear here after the first one.");
  const set = (settings) => {
    noteSettings("mine", settings);
    lookAtUsage();
  };
  const section = (name, title, ...more) =>
    h("section", { "aria-labelledby": `${name}-title` }, h("div", { class: "bar" }, h("h2", { id: `${name}-title` }, title), more[0]), more.slice(1));
  const parts = {
    usage: section(
      "usage",
      "Your usage",
      rangeControl(state.range, set),
      headline.node,
      sums,
      switcher("What the chart shows", METRICS, state.metric, (metric) => {
        state.metric = metric;
        set({ metric });
      }),
      h("div", { class: "panel" }, chartPlace),
      h("div", { class: "panel flush" }, modelPlace),
    ),
    keys: section(
      "keys",
      "Your keys, and what is left",
      isMember && can("POST /admin/api/keys") && newKey,
      keptNote,
      h("div", { class: "own-keys" }, keysPlace),
    ),
    refused: section("refused", "Your last refusals", null, h("div", { class: "panel flush" }, refusalPlace)),
    connect: section(
      "connect",
      "Connect a tool",
      null,
      welcome,
      h("div", { class: "panel" }, connectPanel({ publicUrl, models }), token.get() && testCall(token.get()), mayCall),
    ),
    latency: latency.node,
  };

  /** Without a call yet: what leads to the first one, and no charts. */
  function arrange(isNew) {
    if (isNew === state.isNew) return;
    state.isNew = isNew;
    const { usage, keys, refused, connect, latency } = parts;
    welcome.hidden = !isNew;
    fill(main, isNew ? [connect, keys, refused] : [usage, keys, refused, connect, latency]);
  }
  arrange(false);
  poll(lookAtUsage, EVERY_MS, signal);
  poll(lookAtKeys, EVERY_MS, signal);
  poll(lookAtRefusals, EVERY_MS, signal);
  if (can("GET /admin/api/content")) poll(lookAtKept, EVERY_MS, signal);
}
