// The models with their routes and prices, the upstreams with their state, and the configuration.

import { address } from "./address.js";
import { get } from "./api.js";
import { fill, h } from "./dom.js";
import { NOTHING, count, day, many, percent } from "./format.js";
import { poll } from "./poll.js";
import { RATES } from "./price_columns.js";
import { askReload } from "./reload.js";
import { into } from "./states.js";
import { Table } from "./table.js";
import { filterField, p95Column, sumOf } from "./table_parts.js";
import { circuit, lastFailure, resting, routes, withRuns } from "./upstream_state.js";
import { openModel, openUpstream } from "./view_served.js";

const EVERY_MS = 15_000;
const LATENCY_EVERY_MS = 60_000;

function priceSource(model) {
  if (model.price) return model.price_source === "configured" ? "the configuration" : model.price_source;
  if (model.priced_names) return `${many(model.priced_names, "name")} priced`;
  return h("span", { class: "unknown" }, "unknown");
}

/** The columns of today's calls and their percentiles; `of(row, when)` gives the row of `today` or `yesterday`. */
const latencyColumns = (of) => [
  { title: "Calls today", isNumber: true, sort: (row) => (row.isSum ? row.calls : (of(row, "today")?.requests ?? 0)), show: (row) => count(row.isSum ? row.calls : (of(row, "today")?.requests ?? 0)) },
  ...Object.entries({ "First token p95": "first_token_p95_s", "Duration p95": "duration_p95_s" }).map(([title, name]) => {
    const at = (when) => (row) => (row.isSum ? undefined : (of(row, when)?.[name] ?? null));
    const column = p95Column(title, name, "Of today; below it that of yesterday", at("yesterday"));
    return { ...column, sort: at("today"), show: (row) => column.show({ ...row, [name]: at("today")(row) }) };
  }),
];

const modelColumns = (upstreams, of) => [
  { title: "Model", class: "mono", sort: (model) => model.name, show: (model) => model.name },
  ...latencyColumns(of),
  { title: "Endpoints", class: "clip", sort: (model) => model.endpoints.join(), show: (model) => h("span", { title: model.endpoints.join(", ") }, model.endpoints.join(", ")) },
  ...RATES,
  { title: "Price from", sort: (model) => model.price_source ?? "", show: priceSource },
  { title: "Routes", sort: (model) => model.routes.map((route) => route.upstream).join(), show: (model) => routes(model, upstreams()) },
  { title: "Aliases", class: "mono clip", sort: (model) => model.aliases.join(), show: (model) => model.aliases.join(", ") || NOTHING },
];

/** The fullest limit of an upstream, in words. */
function fullest({ limits }) {
  const share = (row) => (row.used + row.reserved) / row.limit;
  const [first] = [...limits].sort((one, other) => share(other) - share(one));
  return first ? `${percent(first.used + first.reserved, first.limit)} of ${many(limits.length, "limit")}` : NOTHING;
}

const upstreamColumns = (of) => [
  { title: "Upstream", class: "mono", sort: (row) => row.name, show: (row) => row.name },
  { title: "State", sort: (row) => row.state, show: (row) => [circuit(row), row.models.length > 0 && h("small", null, ` · ${many(row.models.length, "model")} not`)] },
  ...latencyColumns(of),
  { title: "Address", class: "mono clip", sort: (row) => row.base_url, show: (row) => h("span", { title: row.base_url }, row.base_url) },
  { title: "In flight", isNumber: true, sort: (row) => row.in_flight, show: (row) => row.in_flight },
  { title: "Waiting", isNumber: true, sort: (row) => row.waiting, show: (row) => row.waiting },
  { title: "Connections", isNumber: true, sort: (row) => row.connections, show: (row) => row.connections },
  { title: "API keys", sort: (row) => row.credentials.length, show: (row) => h("span", { title: resting(row).join("\n") }, `${row.credentials.length}${resting(row).length ? `, ${resting(row).length} in cooldown` : ""}`) },
  { title: "Fullest limit", sort: fullest, show: fullest },
  { title: "Last failure", sort: (row) => row.last_failure?.seconds_ago ?? null, show: lastFailure },
];

export function models(main, context) {
  const { can, signal, address: first, kind } = context;
  const [place, upstreamPlace] = [h("div"), h("div")];
  const note = h("p", { class: "note", role: "status" });
  let upstreams = new Map();
  const latency = new Map(); // by "model today" and the like: rows by name
  const of = (group) => (row, when) => latency.get(`${group} ${when}`)?.get(row.name);
  const total = (group) => (rows) => ({ ...sumOf("in_flight", "waiting", "connections")(rows), isSum: true, calls: rows.reduce((all, row) => all + (of(group)(row, "today")?.requests ?? 0), 0), price: { input: NaN, cached_input: NaN, output: NaN }, limits: [], credentials: [] });
  const at = (view) => (row) => address(view, row.name);
  const table = new Table(modelColumns(() => upstreams, of("model")), {
    caption: "Models",
    name: (model) => model.name,
    href: at("models"),
    sort: 0,
    isDown: false,
    filter: (model, part) => [model.name, ...model.aliases, ...model.routes.flatMap((route) => [route.upstream, route.model ?? ""])].some((each) => each.toLowerCase().includes(part)),
    none: "The configuration names no model.",
    total: total("model"),
  });
  const upstreamTable = new Table(upstreamColumns(of("upstream")), { caption: "Upstreams", name: (row) => row.name, href: at("upstreams"), sort: 0, isDown: false, total: total("upstream") });

  const look = () =>
    into(
      place,
      signal,
      async () => {
        const [served, reached, { upstreams: runs }] = await Promise.all([get("models", null, signal), get("upstreams", null, signal), get("problems", null, signal)]);
        const rows = withRuns(reached.data, runs);
        upstreams = new Map(rows.map((row) => [row.name, row]));
        const avoided = rows.filter((row) => row.state !== "closed" || row.run?.failing).length;
        fill(note, `${many(served.data.length, "model")}, ${many(rows.length, "upstream")}, ${avoided ? `${avoided} failing or avoided` : "all serving"}.`);
        if (!place.contains(table.node)) fill(place, table.node);
        if (!upstreamPlace.contains(upstreamTable.node)) fill(upstreamPlace, upstreamTable.node);
        table.show(served.data);
        upstreamTable.show(rows);
      },
      look,
    );

  const lookAtLatency = async () => {
    const asked = ["model", "upstream"].flatMap((group) => Object.entries({ today: day(), yesterday: day(1) }).map(([when, since]) => ({ group, when, since })));
    const found = await Promise.all(asked.map(({ group, since }) => get("latency", { group_by: group, since, until: since }, signal)));
    asked.forEach(({ group, when }, place) => latency.set(`${group} ${when}`, new Map(found[place].data.map((row) => [row[group], row]))));
    for (const each of [table, upstreamTable]) if (each.rows.length) each.draw();
  };

  fill(
    main,
    h(
      "section",
      { "aria-labelledby": "models-title" },
      h(
        "div",
        { class: "bar" },
        h("h2", { id: "models-title" }, "Models"),
        filterField("Filter by model, upstream", (text) => table.filter(text)),
        can("POST /admin/api/reload") &&
          h("button", { type: "button", id: "reload", onclick: () => askReload(look) }, "Reload the configuration"),
      ),
      note,
      h("div", { class: "panel flush" }, place),
    ),
    h("section", { "aria-labelledby": "upstreams-title" }, h("h2", { id: "upstreams-title" }, "Upstreams"), h("div", { class: "panel flush" }, upstreamPlace)),
  );
  poll(look, EVERY_MS, signal);
  if (can("GET /admin/api/latency")) poll(() => lookAtLatency().catch(() => false), LATENCY_EVERY_MS, signal);
  const open = (name, view) => name && (view === "upstreams" ? openUpstream : openModel)(name, context);
  open(first, kind);
  return open;
}
