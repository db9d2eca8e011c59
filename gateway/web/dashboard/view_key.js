// One key: what it may do, how its quotas stand, why it is refused; and what can be done to it.

import { get, keyPath } from "./api.js";
import { quotaBar } from "./bars.js";
import { openOne } from "./dialog.js";
import { fill, h, refill } from "./dom.js";
import { facts, keptIn, personName, teamName, times } from "./facts.js";
import { NOTHING, count, minute } from "./format.js";
import { askEndSessions, askRevoke, askRotate, setPaused, windowActions } from "./key_actions.js";
import { editKey, labelsInWords } from "./key_form.js";
import { sharedBy } from "./own_keys.js";
import { poll } from "./poll.js";
import { modelOf } from "./refusal_rows.js";
import { into } from "./states.js";
import { Paces } from "./paces.js";
import { SubjectReport } from "./subject.js";

const EVERY_MS = 3000;
const REPORT_EVERY_MS = 60_000;

function secrets(key) {
  return (
    key.secrets
      .map((secret) =>
        [
          secret.created_at ? `made ${minute(secret.created_at)}` : "in the file",
          secret.expires_at ? `, good until ${minute(secret.expires_at)}` : "",
        ].join(""),
      )
      .join("; ") || NOTHING
  );
}

function factsOf(key, can) {
  const limits = Object.entries(key.limits ?? {}).map(
    ([name, value]) => `${name} ${Array.isArray(value) ? value.join(", ") : `≤ ${value}`}`,
  );
  return facts({
    Team: key.team ? teamName(key.team, can) : NOTHING,
    ...(key.owner ? { Owner: personName(key.owner, can) } : {}),
    ...(key.note ? { Note: key.note } : {}),
    ...(Object.keys(key.labels ?? {}).length ? { Labels: labelsInWords(key.labels) } : {}),
    Models: key.models.includes("*") ? "all" : key.models.join(", "),
    "Defined in": keptIn(key),
    Expires: key.expires ? minute(key.expires) : "never",
    Networks: key.ips.join(", ") || "any network",
    "Calls at once": key.max_parallel ?? "unlimited",
    ...(key.priority && key.priority !== "normal" ? { Priority: key.priority } : {}),
    ...(key.weight > 1 ? { Weight: key.weight } : {}),
    "When a quota is spent":
      key.on_exceeded === "deny" ? "the call is refused" : "it is counted and reported only (shadow)",
    Limits: limits.join(", ") || "those of the API",
    Secrets: secrets(key),
    ...times(key),
  });
}

/** How often this key was refused, by the metrics, and what that means now; `logged`: refusals of the log, which have the models that
 * the metrics do not name. */
function refusals(id, sample, windows, logged) {
  const mine = (sample?.refused ?? []).filter((row) => row.key === id);
  if (!mine.length) return null;
  const asked = (status) => [...new Set(logged.filter((row) => row.status === status).map(modelOf).filter(Boolean))];
  const model = (name, status) => (name === "other" ? asked(status).join(", ") || "a model that is not configured" : name);
  const often = mine
    .map((row) => `${count(row.requests)} × ${row.status}${row.model ? ` for ${model(row.model, row.status)}` : ""}`)
    .join(", ");
  const full = windows.filter((row) => row.enforced && row.remaining === 0).length;
  const now = full
    ? "A full bar below says what is in the way now."
    : mine.some((row) => row.status === 429)
      ? "No limit is full now: a rate has refilled since, or reservations of running calls were in the way."
      : "";
  return h(
    "p",
    { class: "why bad", id: "why-refused" },
    h("b", null, `Refused since the gateway started: ${often}. `),
    now,
  );
}

/** The windows of a key, and those of its team and of the gateway. */
function limits(id, windows, actions, can) {
  const [own, shared] = [windows.filter((row) => row.key === id), windows.filter((row) => row.key !== id)];
  const bars = (rows, actionsOf) => h("div", { class: "quotas" }, rows.map((row) => quotaBar(row, actionsOf(row))));
  return [
    own.length ? bars(own, actions) : h("p", { class: "note" }, "This key has no limits of its own."),
    [...Map.groupBy(shared, (row) => row.scope).values()].map((rows) => [
      h("h3", null, sharedBy(rows[0], (team) => teamName(team, can))),
      bars(rows, () => []),
    ]),
  ];
}

/** Open a key by its id; closing leads back to the list. */
export function openKey(id, context, changed) {
  const { can, ownKey, feed, signal } = context;
  const { place, about, more, buttons, both } = openOne(id, "#keys", signal);
  const paces = new Paces(both);
  const report = new SubjectReport({ group: "key", name: id }, "keys", context, both);
  fill(more, report.node);

  const isMine = ownKey === null || id === ownKey;
  const may = (method, action) => isMine && can(`${method} /admin/api/keys/{id}${action}`);

  const look = () =>
    into(
      place,
      both,
      async () => {
        const [key, { data: windows }] = await Promise.all([
          get(keyPath(id), null, both),
          get("quotas", { key: id, binding: "true" }, both).then(async ({ data }) => ({ data: await paces.added(data, { key: id }, ["key"]) })),
        ]);
        const redo = () => {
          look();
          changed();
        };
        refill(
          place,
          key.status !== "active" &&
            h(
              "p",
              { class: "why bad" },
              {
                revoked: "This key is revoked: calls with it get 401.",
                paused: "This key is paused: calls with it get 401 until it is resumed.",
              }[key.status] ?? "This key has expired: calls with it get 401.",
            ),
          refusals(id, feed.last, windows, report.refusals.table.rows),
          limits(id, windows, (row) => windowActions(row, redo, can), can),
        );
        refill(about, factsOf(key, can));
        refill(
          buttons,
          report.calls,
          key.status !== "revoked" && [
            may("PATCH", "") &&
              key.managed_by === "store" &&
              h("button", { type: "button", onclick: () => editKey(key, redo, context) }, "Edit"),
            may("POST", "/rotate") &&
              key.managed_by === "store" &&
              h("button", { type: "button", onclick: () => askRotate(key, redo, ownKey !== null) }, "Rotate"),
            may("POST", "/pause") &&
              h("button", { type: "button", onclick: () => setPaused(key, redo) }, key.status === "paused" ? "Resume" : "Pause"),
            may("DELETE", "") &&
              h("button", { type: "button", class: "danger", onclick: () => askRevoke(key, redo) }, "Revoke"),
          ],
          key.owner &&
            can("POST /admin/api/people/{person}/end_sessions") &&
            h("button", { type: "button", onclick: () => askEndSessions(key.owner) }, "End sessions of its owner"),
        );
      },
      look,
    );
  poll(look, EVERY_MS, both);
  poll(() => report.look(), REPORT_EVERY_MS, both);
}
