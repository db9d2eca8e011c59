// Why a call ended as it did, and why one was refused, in words.

const STATUS = {
  400: "The upstream refused the request as invalid.",
  403: "The upstream refused the request.",
  404: "The upstream does not know what was asked for.",
  408: "The body of the request did not arrive in time.",
  413: "The upstream found the request too large.",
  422: "The upstream could not process the request.",
  429: "Every upstream of this model refused because of its own rate limit. The gateway's quotas had room.",
  499: "The client left before its answer had ended.",
  500: "The gateway failed; its log says why.",
  502:
    "The upstream failed: it could not be reached, answered with an error, refused the gateway's own credentials, or " +
    "broke off. Metrics (upstream attempts) and the log say which.",
  503: "The upstream was overloaded or away.",
  504: "The upstream did not answer in time.",
};

/** Statuses of an upstream's answer to a wrong request. */
const REFUSED = [400, 403, 404, 413, 422];

const SOURCE = {
  reported: "The upstream reported its tokens.",
  estimated: "Nobody reported its tokens: they are an estimate.",
  none: "Nothing was generated, so no tokens are charged.",
};

/** The kind of pill for each kind of outcome. */
export const PILL = { good: "fine", bad: "full", mild: "near" };

/** One word for a list, and which kind of news it is. */
export function outcome(call) {
  if (call.ended === "lost") return ["lost", "bad"];
  if (call.ended === "client_gone") return ["client left", "mild"];
  if (call.ended === "error" && REFUSED.includes(call.status)) return ["refused by upstream", "mild"];
  if (call.ended === "error") return [call.truncated ? "cut off" : "failed", "bad"];
  return call.truncated ? ["cut off", "bad"] : ["answered", "good"];
}

/** Sentences about one call. */
export function explain(call) {
  const said = [];
  if (call.ended === "lost")
    said.push(
      "The worker that carried this call died, or lost the store for too long: it is charged with what it had " +
        "reserved. If its journal comes back, this is corrected.",
    );
  else if (call.ended === "client_gone") said.push(STATUS[499]);
  else if (call.ended === "error" && call.status < 400)
    said.push(
      "The answer had begun, and the upstream broke off or sent an error: the stream ended with an error for the client.",
    );
  else if (call.ended === "error" && !call.upstream)
    said.push(
      "No upstream was asked: each that serves this model had failed again and again just before, or had no free " +
        "connection.",
    );
  else if (call.ended === "error" && call.status >= 500 && call.failed?.length) {
    const { upstream, fault } = call.failed.at(-1);
    said.push(`The upstream ${upstream} failed: ${attemptOutcome(fault)}.`);
  }
  else if (call.ended === "error") said.push(STATUS[call.status] ?? `It ended with status ${call.status}.`);
  else said.push("Answered in full.");
  if (call.truncated) said.push("The client has only a part of the answer.");
  if (call.attempts > 1) said.push(`It took ${call.attempts} attempts.`);
  said.push(SOURCE[call.usage_source] ?? "");
  if (call.cost_usd === null) said.push("Its cost is unknown: the model has no price.");
  return said.filter(Boolean);
}

export const STATES = [
  ["serving", "fine"],
  ["being tested", "near"],
  ["avoided", "full"],
];

const OUTCOMES = {
  ok: "answered",
  refused: "refused the request itself",
  client_gone: "client left",
  hedged: "stopped: the other route answered",
  connect_failed: "not reached",
  no_free_connection: "no free connection",
  timeout: "timed out",
  cut: "broke off",
  not_http: "not HTTP",
  too_large: "answer too large",
  not_json: "not JSON",
  content_encoding: "unknown content encoding",
  redirect: "redirect",
  status: "error status",
  wrong_url: "URL not found: check base_url",
  rate_limited: "rate limited",
  auth_failed: "refused our credentials",
  balance_spent: "our balance is spent",
  upstream_quota: "its quota here is spent",
  error_event: "error in the stream",
  unfit_answer: "unusable answer",
  no_channel: "no channel for the model",
  circuit_open: "not asked: circuit breaker open",
};

export const attemptOutcome = (name) => OUTCOMES[name] ?? name;
export const isGood = (name) => name === "ok" || name === "refused" || name === "client_gone" || name === "hedged";
