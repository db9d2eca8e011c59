// A person's own keys: their windows, what is left and when it is free again, and what may be done to them.

import { get } from "./api.js";
import { quotaBar } from "./bars.js";
import { h } from "./dom.js";
import { askRevoke, askRotate, keyLine, setPaused } from "./key_actions.js";

/** One key: its windows, and what may be done to it. */
export function keyPanel(key, windows, { can, ownKey, role, team }, redo) {
  const isMine = (ownKey === null || key.id === ownKey) && (role !== "lead" || key.team === team);
  const one = (action) => isMine && can(`POST /admin/api/keys/{id}/${action}`) && key.status !== "revoked";
  return h(
    "section",
    { class: "panel own-key", data: { key: key.id } },
    keyLine(key),
    windows.length
      ? windows.map((row) => quotaBar(row))
      : h("p", { class: "note" }, "No limits of its own."),
    h(
      "footer",
      null,
      one("rotate") &&
        key.managed_by === "store" &&
        h("button", { type: "button", onclick: () => askRotate(key, redo, ownKey !== null) }, "Rotate"),
      one("pause") &&
        h("button", { type: "button", onclick: () => setPaused(key, redo) }, key.status === "paused" ? "Resume" : "Pause"),
      isMine &&
        can("DELETE /admin/api/keys/{id}") &&
        key.status !== "revoked" &&
        h("button", { type: "button", class: "danger", onclick: () => askRevoke(key, redo) }, "Revoke"),
    ),
  );
}

/** The windows that these keys share with others: those of their teams and of the gateway. */
export async function sharedWindows(keys, own, signal) {
  const oneOfEach = [...Map.groupBy(keys, (key) => key.team).values()].map(([first]) => first);
  const found = await Promise.all(oneOfEach.map((key) => get("quotas", { key: key.id, binding: "true", ...own }, signal)));
  const byWindow = new Map();
  for (const row of found.flatMap(({ data }) => data))
    if (row.key === null) byWindow.set(JSON.stringify([row.scope, row.unit, row.per, row.model]), row);
  return [...byWindow.values()];
}

/** The sharers of a window that is no key's: all keys of a person, a person's keys of a team, a team, or the whole gateway. */
export function sharedBy({ person, team }, named) {
  if (person) return ["Shared by the keys of ", h("b", null, person), team && [" in the team ", named(team)]];
  return team ? ["Shared by the team ", named(team)] : "Shared by the whole gateway";
}

/** The windows that a person, a team or the whole gateway has. */
export const sharedPanel = (rows) =>
  h(
    "section",
    { class: "panel shared", data: { scope: rows[0].scope } },
    h("p", { class: "key-line" }, sharedBy(rows[0], (team) => h("b", null, team))),
    rows.map((row) => quotaBar(row)),
  );
