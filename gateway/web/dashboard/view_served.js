// One model or one upstream: its settings, its state and limits, and its usage.

import { address } from "./address.js";
import { get } from "./api.js";
import { quotaBar } from "./bars.js";
import { openOne } from "./dialog.js";
import { fill, h, refill } from "./dom.js";
import { facts } from "./facts.js";
import { amount, count, usd } from "./format.js";
import { poll } from "./poll.js";
import { into } from "./states.js";
import { SubjectReport } from "./subject.js";
import { circuit, lastFailure, resting, routes, settingsOf, withRuns } from "./upstream_state.js";
import { attemptOutcome } from "./words.js";

const EVERY_MS = 5000;
const REPORT_EVERY_MS = 60_000;

const named = ({ data }, name) => data.find((row) => row.name === name);
const gone = (what, name) => h("p", { class: "why bad" }, `The configuration has no ${what} ${name} now; its usage stays.`);
const linked = (names, view) => names.map((name, place) => [place > 0 && ", ", h("a", { class: "mono", href: address(view, name) }, name)]);

/** A page that is read again and again: `read(signal)` gives its content. */
function page(group, name, context, title, read) {
  const list = `#${group}s`;
  const { place, more, buttons, both } = openOne(title, list, context.signal);
  const report = new SubjectReport({ group, name }, `${group}s`, context, both);
  fill(more, report.node);
  fill(buttons, report.calls);
  const look = () => into(place, both, async () => refill(place, await read(both)), look);
  poll(look, EVERY_MS, both);
  poll(() => report.look(), REPORT_EVERY_MS, both);
}

function priceOf(model) {
  if (!model.price) return model.priced_names ? `of ${count(model.priced_names)} names each its own` : "unknown";
  const rows = Object.entries(model.price).map(([row, rate]) => `${row} ${usd(rate)}`);
  return `${rows.join(", ")} (${model.price_source === "configured" ? "the configuration" : model.price_source})`;
}

/** Open a model by its name in the configuration. */
export function openModel(name, context) {
  page("model", name, context, `Model ${name}`, async (signal) => {
    const [served, reached] = await Promise.all([get("models", null, signal), get("upstreams", null, signal)]);
    const model = named(served, name);
    if (!model) return gone("model", name);
    return facts({
      Routes: routes(model, new Map(reached.data.map((row) => [row.name, row]))),
      Price: priceOf(model),
      Endpoints: model.endpoints.join(", "),
      ...(model.aliases.length ? { Aliases: model.aliases.join(", ") } : {}),
      ...settingsOf(model.settings),
    });
  });
}

/** A limit of an upstream: how full it is, and what is assumed where that is not what is configured. */
function limitBar(row) {
  const bar = quotaBar({ ...row, enforced: true });
  if (row.limit !== row.configured)
    bar.append(h("p", { class: "note", data: { learned: row.configured } }, `Learned from its answers; ${amount(row.unit, row.configured)} are configured.`));
  if (row.scope.includes("#")) bar.prepend(h("p", { class: "note" }, `API key ${row.scope.split("#").at(-1)}`));
  return bar;
}

function attempts(sample, name) {
  const outcomes = Object.entries(sample?.upstreams[name]?.attempts ?? {}).filter(([, number]) => number > 0);
  if (!outcomes.length) return "none since the start";
  return outcomes.map(([outcome, number]) => `${attemptOutcome(outcome)} × ${count(number)}`).join(", ");
}

/** Open an upstream by its name. */
export function openUpstream(name, context) {
  page("upstream", name, context, `Upstream ${name}`, async (signal) => {
    const [served, reached, { upstreams: runs }] = await Promise.all([get("models", null, signal), get("upstreams", null, signal), get("problems", null, signal)]);
    const upstream = named({ data: withRuns(reached.data, runs) }, name);
    if (!upstream) return gone("upstream", name);
    const cooling = resting(upstream);
    const models = served.data.filter((model) => model.routes.some((route) => route.upstream === name));
    return [
      upstream.limits.length > 0 && h("div", { class: "quotas" }, upstream.limits.map(limitBar)),
      facts({
        State: circuit(upstream),
        ...Object.fromEntries(upstream.models.map((each) => [`Circuit of ${each.model}`, circuit(each)])),
        Address: upstream.base_url,
        "Last failure": lastFailure(upstream),
        "In flight": `${count(upstream.in_flight)}, ${count(upstream.waiting)} waiting, ${count(upstream.connections)} connections`,
        "API keys": cooling.length ? cooling.join("; ") : `${upstream.credentials.length}, none in cooldown`,
        Attempts: attempts(context.feed.last, name),
        Models: models.length ? h("span", null, linked(models.map((model) => model.name), "models")) : "none leads here",
        ...settingsOf(upstream.settings),
      }),
    ];
  });
}
