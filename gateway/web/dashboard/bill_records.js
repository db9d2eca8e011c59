// Records and bill: what the providers bill beside what is recorded, by day or model, and the causes of each difference.

import { address as addressOf, noteSettings, replaceAddress } from "./address.js";
import { get, getCsv } from "./api.js";
import { fill, h } from "./dom.js";
import { accountInWords, causeList, causesInWords, quantityInWords, sumOfBills, unexplained } from "./bill_words.js";
import { day, many, minute, signed, usd } from "./format.js";
import { monthStart, shifted } from "./range.js";
import { poll } from "./poll.js";
import { empty, into } from "./states.js";
import { switcher } from "./switcher.js";
import { Table } from "./table.js";
import { filterField } from "./table_parts.js";

const EVERY_MS = 60_000;
const RANGES = { all: "All days read", month: "This month", last: "Last month" };
const BY = { day: "day", model: "model", upstream: "upstream" };

function daysOf(range) {
  const first = monthStart(day());
  if (range === "month") return { since: first, until: day() };
  return range === "last" ? { since: monthStart(shifted(first, -1)), until: shifted(first, -1) } : {};
}

const money = (title, name, hint) => ({ title, hint, isNumber: true, sort: (row) => row[name], show: (row) => usd(row[name]) });

const difference = {
  title: "Difference",
  hint: "The bill minus the records",
  isNumber: true,
  sort: (row) => row.difference_usd,
  show: (row) => h("span", { class: row.difference_usd ? "bad" : null }, signed(row.difference_usd, usd)),
};

const columnsOf = (first, causes) => [
  first,
  money("Bill", "bill_usd", "What the provider bills"),
  money("Recorded", "recorded_usd", "The cost that the gateway has recorded"),
  difference,
  { title: "Unexplained", hint: "What no cause accounts for", isNumber: true, sort: (row) => row.unexplained_usd, show: (row) => signed(row.unexplained_usd, usd) },
  { title: "Causes", class: "why-cell", sort: (row) => causesInWords(row, causes).length, show: (row) => causesInWords(row, causes) || "They agree." },
];

/** The calls behind a row of one day and model; of a model that has several names here, or none, those of the day. */
const callsOf = (row) => addressOf("calls", "", { upstream: row.upstream, model: row.models.length === 1 ? row.models[0] : "", from: `${row.day}T00:00`, until: `${row.day}T23:59` });

/** The days and models of a group, with the way to their calls. */
function rowsBelow(rows, by, causes) {
  const name = (row) => [by !== "day" && row.day, by !== "model" && row.model, by !== "upstream" && row.upstream].filter(Boolean).join(" ");
  const table = new Table(
    [
      ...columnsOf({ title: "Day, model, upstream", class: "mono", sort: name, show: name }, causes),
      { title: "Requests", hint: "Of the bill, and recorded; of what is no call, what is used", isNumber: true, sort: (row) => row.bill_requests, show: quantityInWords },
      { title: "Calls", show: (row) => h("a", { href: callsOf(row) }, "the calls") },
    ],
    { caption: "Days and models", name, sort: 3, total: sumOfBills },
  );
  table.show(rows);
  return table.node;
}

function groupTable(by, causes, whole) {
  const table = new Table(
    columnsOf({ title: by[0].toUpperCase() + by.slice(1), class: "mono", isExact: true, sort: (row) => row.name, show: (row) => [h("span", { class: by === "day" ? "day" : null }, row.name || "total"), " ", row.rows && table.opener(row)] }, causes),
    {
      caption: `Records and bill by ${by}`,
      name: (row) => row.name,
      sort: by === "day" ? 0 : 3,
      filter: (row, part) => row.rows.some((each) => [each.day, each.model, each.upstream, ...each.models].some((text) => text.toLowerCase().includes(part))),
      details: (row) => row.rows && { title: by === "day" ? many(new Set(row.rows.map((each) => each.model)).size, "model") : many(row.rows.length, "line"), node: () => rowsBelow(row.rows, by, causes) },
      total: (rows) => ({ ...sumOfBills(rows), name: "" }),
      none: "The bill and the records have nothing on these days.",
      whole,
    },
  );
  return table;
}

const PRICES = ["input", "cached_input", "output"];

/** The prices that a bill has for models, as lines of the configuration. */
function proposed(upstream, rows) {
  const here = new Map(rows.map((row) => [row.model, row.models]));
  const written = (rates) => PRICES.filter((kind) => (rates[`${kind}_usd_per_million`] ?? null) !== null)
    .map((kind) => `${kind}: ${Number(rates[`${kind}_usd_per_million`].toPrecision(6))}`)
    .join(", ");
  const lines = upstream.prices.flatMap((row) => {
    const names = here.get(row.model)?.length ? here.get(row.model) : [row.model];
    const now = (name) => (row.configured[name] ? `  # now {${written(row.configured[name])}}` : "");
    return names.map((name) => `  ${JSON.stringify(name)}:\n    price: {${written(row)}}${now(name)}`);
  });
  return h(
    "div",
    null,
    h("h4", null, "Proposed prices"),
    h("p", { class: "note" }, "On three days or more the bill had these prices, in US dollars per million tokens. Nothing changes by itself: put them into the configuration if they are right."),
    h("pre", { tabindex: "0", class: "proposed" }, `models:\n${lines.join("\n")}`),
  );
}

function pill({ failed, read_at, difference_usd, causes }) {
  if (!read_at) return failed ? h("span", { class: "pill full" }, "not read") : h("span", { class: "pill near" }, "not read yet");
  if (failed) return h("span", { class: "pill near" }, "not up to date");
  if (causes.unexplained) return h("span", { class: "pill near" }, "bill differs");
  return difference_usd ? h("span", { class: "pill near" }, "explained") : h("span", { class: "pill fine" }, "agrees");
}

function panelOf(upstream, rows, causes, isLinked) {
  const figure = (name, title, amount) => h("div", { class: "sum", data: { sum: name } }, h("dt", null, title), h("dd", null, h("b", { data: { value: amount } }, name.startsWith("difference") || name === "unexplained" ? signed(amount, usd) : usd(amount))));
  const name = upstream.upstream;
  return h(
    "section",
    { class: "panel bill", data: { bill: name } },
    h("h3", null, isLinked ? h("a", { class: "mono", href: addressOf("upstreams", name) }, name) : name, " ", pill(upstream)),
    upstream.failed && h("p", { class: "trouble" }, upstream.failed),
    upstream.read_at && [
      h("p", { class: "note" }, `From ${upstream.since} on, read ${minute(upstream.read_at)}; days from ${upstream.open_from} on may not be billed wholly.`),
      h(
        "dl",
        { class: "sums" },
        figure("bill_usd", "Bill", upstream.bill_usd),
        figure("recorded_usd", "Recorded", upstream.recorded_usd),
        figure("difference_usd", "Difference", upstream.difference_usd),
        figure("unexplained", "Unexplained", upstream.causes.unexplained ?? 0),
      ),
      causeList(upstream.causes, causes),
      accountInWords(upstream, rows),
      upstream.prices.length > 0 && proposed(upstream, rows),
    ],
  );
}

export function recordsPart(place, { signal, address, query, can }) {
  const state = { range: query.get("range") in RANGES ? query.get("range") : "all", by: query.get("by") in BY ? query.get("by") : "day", upstream: address, text: "" };
  const [panels, rows, chips] = [h("div", { class: "bills" }), h("div"), h("span", { class: "chips" })];
  const filter = filterField("Filter by day, model, upstream", (text) => {
    state.text = text;
    state.table?.filter(text);
  });

  function draw() {
    const { causes, upstreams, data } = state.found;
    const isMeant = (row) => !state.upstream || row.upstream === state.upstream;
    const [some, lines] = [upstreams.filter(isMeant), data.filter(isMeant)];
    fill(chips, state.upstream && h("button", { type: "button", class: "chip", data: { filter: "upstream" }, "aria-label": `Remove the filter upstream ${state.upstream}`, onclick: all }, h("span", null, "upstream: ", h("b", { class: "mono" }, state.upstream)), h("span", { "aria-hidden": "true" }, "✕")));
    if (!upstreams.length) {
      fill(panels, empty("No bill is read", "With ", h("code", null, "billing.upstreams"), " in the configuration the gateway reads the bill of OpenAI, Anthropic, OpenRouter, new-api, one-api or LiteLLM every hour. A file can be compared without it."));
      fill(rows);
      return;
    }
    fill(panels, some.map((each) => panelOf(each, state.whole.filter((row) => row.upstream === each.upstream), causes, can("GET /admin/api/models"))));
    if (state.table?.by !== state.by) {
      state.table = groupTable(state.by, causes, () => getCsv("bills", daysOf(state.range), signal));
      state.table.by = state.by;
      state.table.text = state.text.trim().toLowerCase();
    }
    const groups = Map.groupBy(lines.map((row) => ({ ...row, unexplained_usd: unexplained(row) })), (row) => row[state.by]);
    if (!rows.contains(state.table.node)) fill(rows, state.table.node);
    state.table.show([...groups].map(([name, found]) => ({ ...sumOfBills(found), name, rows: found })));
  }

  const look = () =>
    into(
      panels,
      signal,
      async () => {
        const days = daysOf(state.range);
        const found = await get("bills", days, signal);
        state.found = found;
        state.whole = days.since ? (await get("bills", null, signal)).data : found.data; // a pace is of all days
        draw();
      },
      look,
    );

  function all() {
    state.upstream = "";
    replaceAddress(addressOf("bills", "", { range: state.range === "all" ? "" : state.range, by: state.by === "day" ? "" : state.by }));
    draw();
  }

  const set = (name, value, usual) => {
    state[name] = value;
    noteSettings("bills", { [name]: value === usual ? "" : value });
    look();
  };
  fill(
    place,
    h(
      "section",
      { "aria-labelledby": "bills-title" },
      h("div", { class: "bar" }, h("h2", { id: "bills-title" }, "Records and bill"), switcher("Days", RANGES, state.range, (range) => set("range", range, "all")), chips),
      h("p", { class: "note" }, "What the providers bill beside what the gateway has recorded. A difference is the bill minus the records, and its causes add up to it."),
      panels,
      h("div", { class: "bar" }, h("span", { class: "by" }, "by ", switcher("One row for each", BY, state.by, (by) => set("by", by, "day"))), filter),
      h("div", { class: "panel flush" }, rows),
    ),
  );
  poll(look, EVERY_MS, signal);
}
