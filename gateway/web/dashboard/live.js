// Live numbers: rates of the last seconds, times of the last minute, and the state of the upstreams.

import { address } from "./address.js";
import { spark } from "./chart.js";
import { fill, h } from "./dom.js";
import { NOTHING, compact, count, many, percent, rate, span } from "./format.js";
import { curve, lately, perSecond, quantile } from "./rates.js";
import { bones, failed as failure } from "./states.js";
import { runInWords } from "./upstream_state.js";
import { STATES, attemptOutcome, isGood } from "./words.js";

const tokens = (sample) => sample.tokens.completion;
const requests = (sample) => sample.requests;
const faults = (sample) =>
  Object.entries(sample.by_status).reduce((all, [status, number]) => all + (Number(status) >= 400 ? number : 0), 0);
const firstToken = (sample) => sample.first_token;

function figure(name, title, value, more, drawing) {
  return h(
    "div",
    { class: "live-figure", data: { tile: name } },
    h("span", { class: "live-title" }, title),
    h("b", { class: "figure" }, value),
    h("small", { class: "more" }, more),
    drawing,
  );
}

function figures(samples) {
  const last = samples.at(-1);
  const failing = lately(samples, faults);
  const recent = lately(samples, requests);
  return [
    figure(
      "requests",
      "Requests/s",
      rate(perSecond(samples, requests)),
      `${count(last.requests)} since the start`,
      spark(curve(samples, requests)),
    ),
    figure(
      "first-token",
      "First token",
      span(quantile(samples, firstToken, 0.5)),
      "median",
      spark(samples.map((_, place) => quantile(samples.slice(0, place + 1), firstToken, 0.5)).filter((each) => each !== null)),
    ),
    figure(
      "tokens",
      "Tokens/s",
      rate(perSecond(samples, tokens)),
      `${compact(last.tokens.completion)} since the start`,
      spark(curve(samples, tokens)),
    ),
    figure(
      "in-flight",
      "In flight",
      count(last.in_flight),
      last.journal_pending ? `${many(last.journal_pending, "record")} not in the store yet` : "",
      spark(samples.map((sample) => sample.in_flight)),
    ),
    figure(
      "errors",
      "Refused or failed",
      h("span", { class: failing ? "bad" : "" }, failing === null ? NOTHING : count(failing)),
      recent ? `in a minute, ${percent(failing ?? 0, recent)}` : "in a minute",
      spark(curve(samples, faults)),
    ),
  ];
}

function upstream(name, samples, run) {
  const pick = (sample) => sample.upstreams[name];
  const now = pick(samples.at(-1));
  const [said, kind] = run?.failing ? ["failing", "full"] : STATES[now.state];
  const outcomes = Object.entries(now.attempts).filter(([, number]) => number > 0);
  const sum = (isWanted) =>
    outcomes.reduce((all, [outcome, number]) => all + (isGood(outcome) === isWanted ? number : 0), 0);
  const [good, failed] = [sum(true), sum(false)];
  const median = quantile(samples, (sample) => pick(sample)?.first_token ?? { le: [], counts: [] }, 0.5);
  const troubles = outcomes.filter(([outcome]) => !isGood(outcome)).sort((one, other) => other[1] - one[1]);
  return h(
    "li",
    { class: "upstream", data: { upstream: name, state: now.state } },
    h("div", { class: "row" }, h("a", { class: "mono", href: address("upstreams", name) }, name), h("span", { class: `pill ${kind}` }, said)),
    run && h("p", { class: "more", title: run.detail, data: { run: String(run.failing) } }, run.failing ? runInWords(run) : `Failed lately: ${runInWords(run)}`, run.message && h("q", { class: "said" }, run.message)),
    h(
      "p",
      { class: "more" },
      `${count(good)} attempts answered, ${count(failed)} failed since the start`,
      median === null ? null : ` · first token ${span(median)}`,
    ),
    troubles.length > 0 &&
      h(
        "p",
        { class: "more" },
        troubles.map(([outcome, number]) => `${attemptOutcome(outcome)} × ${count(number)}`).join(", "),
      ),
  );
}

/** The strip of live numbers, and the list of upstreams. */
export function livePanel(feed, signal) {
  const strip = h("div", { class: "live panel", "aria-label": "Live numbers", role: "group" }, bones("line", 1));
  const list = h("ul", { class: "upstreams" }, bones("line", 2));
  let runs = new Map();
  const draw = () => {
    if (!feed.last) {
      fill(strip, failure(feed.error));
      fill(list);
      return;
    }
    for (const node of [strip, list]) node.classList.toggle("old", feed.error !== null);
    fill(strip, figures(feed.samples));
    fill(
      list,
      Object.keys(feed.last.upstreams).map((name) => upstream(name, feed.samples, runs.get(name))),
    );
  };
  feed.listen(draw, signal);
  return {
    /** Shows the runs of failures of upstreams, too. */
    noteRuns(found) {
      runs = new Map(found.map((run) => [run.upstream, run]));
      if (feed.last) draw();
    },
    strip: h("section", { "aria-labelledby": "live-title" }, h("h2", { id: "live-title" }, "Live"), strip),
    upstreams: h("section", { "aria-labelledby": "upstreams-title" }, h("h2", { id: "upstreams-title" }, "Upstreams"), list),
  };
}
