// The times of one call: the bar of the whole, and its attempts and waits in their order.

import { h } from "./dom.js";
import { span } from "./format.js";
import { PILL, attemptOutcome, outcome } from "./words.js";

/** The time of a call as a bar: until the first token, and from there to the end; an answer that is not streamed is one part. */
export function waterfall(call) {
  if (!call.duration_s) return null;
  const first = Math.min((call.stream ? call.first_byte_s : null) ?? call.duration_s, call.duration_s);
  const part = (kind, seconds, title) => {
    const node = h("span", { class: kind, title: `${title}: ${span(seconds)}` });
    node.style.width = `${(100 * seconds) / call.duration_s}%`;
    return node;
  };
  const answer = call.duration_s - first;
  return h(
    "figure",
    { class: "waterfall" },
    h("div", { class: "bar-track", "aria-hidden": "true" }, part("waited", first, call.stream ? "Until the first token" : "Until the answer"), part("used", answer, "The answer")),
    h("figcaption", null, call.stream ? `${span(first)} until the first token, ${span(answer)} of answer` : `${span(first)}, not streamed`),
  );
}

/** The attempts and waits of a call in their order; without times where the record has none. */
function stepsOf(call) {
  if (call.timeline.length || !call.failed.length) return call.timeline;
  return [...call.failed, ...(call.status < 400 ? [{ upstream: call.upstream, fault: null }] : [])];
}

/** The outcome of an attempt or a wait: words, and the kind of news, as in `outcome`. */
function endOf({ upstream, fault }, call) {
  if (!upstream) return ["waited for room", "mild"];
  if (fault) return [attemptOutcome(fault), "bad"];
  return call.status < 400 ? ["answered", "good"] : outcome(call);
}

/** When an attempt was, in words and as a bar on the scale of the whole call. */
function timeOf({ began_s, ended_s }, kind, call) {
  if (began_s === undefined || !call.duration_s) return null;
  const bar = h("span", { class: kind });
  const [from, to] = [began_s, ended_s].map((time) => Math.min(100, (100 * time) / call.duration_s));
  bar.style.marginInlineStart = `${from}%`;
  bar.style.width = `${Math.max(0.5, to - from)}%`;
  return [
    h("span", { class: "note" }, ` ${span(ended_s - began_s)}, from ${span(began_s)} to ${span(ended_s)}`),
    h("div", { class: "bar-track", "aria-hidden": "true" }, bar),
  ];
}

export function attempts(call) {
  const steps = stepsOf(call);
  if (!steps.length) return null;
  const line = (step) => {
    const [said, kind] = endOf(step, call);
    return h(
      "li",
      { data: { step: step.upstream ?? "wait" } },
      step.upstream && [h("b", { class: "mono" }, step.upstream), " "],
      h("span", { class: `pill ${PILL[kind]}` }, said),
      timeOf(step, step.upstream ? (step.fault ? "lost" : "used") : "waited", call),
    );
  };
  return [h("h3", null, "Attempts"), h("ol", { class: "attempts" }, steps.map(line))];
}
