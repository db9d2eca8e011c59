// Actions on keys and windows, each behind a question: rotate, revoke, top up, count anew.

import { keyPath, post, remove, token } from "./api.js";
import { attempt, confirmFirst, openDialog, showSecret } from "./dialog.js";
import { h } from "./dom.js";
import { amount, isCalendar, minute, quotaName } from "./format.js";
import { bodyOf, ownerOf, pathOf, placeOf } from "./scopes.js";

const OVERLAPS = [
  [0, "not at all: it is dead at once"],
  [3600, "for an hour"],
  [86_400, "for a day"],
  [604_800, "for a week"],
];

/** Buttons of one window: more of it, if it ends by the calendar; and counting anew; of these what `can` be done. */
export function windowActions(row, then, can) {
  if (row.unit === "parallel") return [];
  const may = (action) => can(`POST /admin/api/${placeOf(row.scope)}/${action}`);
  return [
    may("top_up") && isCalendar(row) && h("button", { type: "button", class: "quiet", onclick: () => askTopUp(row, then) }, "Top up"),
    may("reset") && row.used > 0 && h("button", { type: "button", class: "quiet", onclick: () => askReset(row, then) }, "Reset"),
  ].filter(Boolean);
}

function askTopUp(row, then) {
  openDialog(
    "Top up",
    (close) => {
      const trouble = h("p", { class: "trouble", role: "alert" });
      const more = h("input", {
        type: "number",
        min: "0",
        step: row.unit === "usd" ? "any" : "1",
        required: true,
        autofocus: true,
        name: "more",
      });
      const save = h("button", { type: "submit", class: "primary" }, "Top up");
      const act = async () => {
        const grant = { [row.unit]: Number(more.value), per: row.per };
        if (row.model) grant.model = row.model;
        await post(pathOf(row.scope, "top_up"), bodyOf(row.scope, grant));
        close();
        then();
      };
      return h(
        "form",
        {
          onsubmit: (event) => {
            event.preventDefault();
            attempt(save, trouble, act);
          },
        },
        h(
          "p",
          null,
          `More ${quotaName(row)} for `,
          h("b", null, ownerOf(row.scope)),
          `, in the running ${row.per} only. The limit is ${amount(row.unit, row.limit)} now.`,
        ),
        h("label", null, row.unit === "usd" ? "US dollars" : row.unit, more),
        trouble,
        h("footer", null, h("button", { type: "button", onclick: close }, "Cancel"), save),
      );
    },
    { kind: "small" },
  );
}

function askReset(row, then) {
  confirmFirst(
    "Reset this quota",
    [
      "Count nothing as used of ",
      h("b", null, quotaName(row)),
      ` of ${ownerOf(row.scope)}? What running calls have reserved stays reserved, and the usage stays in the reports.`,
    ],
    "Reset",
    async () => {
      const which = { unit: row.unit, per: /^\d+$/.test(row.per) ? Number(row.per) : row.per };
      if (row.model) which.model = row.model;
      await post(pathOf(row.scope, "reset"), bodyOf(row.scope, which));
      then();
    },
  );
}

/** A new secret. `isOwn`: this page shows the key with its own secret, which is replaced here, too. */
export function askRotate(key, then, isOwn = false) {
  openDialog(
    "New secret",
    (close) => {
      const trouble = h("p", { class: "trouble", role: "alert" });
      const overlap = h(
        "select",
        { name: "overlap", autofocus: true },
        (isOwn ? OVERLAPS.slice(0, 1) : OVERLAPS).map(([seconds, words]) => h("option", { value: seconds }, words)),
      );
      const yes = h("button", { type: "submit", class: "primary" }, "Give a new secret");
      const act = async () => {
        const issued = await post(keyPath(key.id, "rotate"), { overlap_s: Number(overlap.value) });
        if (isOwn) token.set(issued.secret);
        close();
        showSecret("The new secret", key.id, issued.secret);
        then();
      };
      return h(
        "form",
        {
          onsubmit: (event) => {
            event.preventDefault();
            attempt(yes, trouble, act);
          },
        },
        h("p", null, "The key ", h("b", null, key.id), " gets a new secret and keeps everything else."),
        h("label", null, "The old secret goes on working", overlap),
        trouble,
        h("footer", null, h("button", { type: "button", onclick: close }, "Cancel"), yes),
      );
    },
    { kind: "small" },
  );
}

/** Pause a key, or let it call again. */
export async function setPaused(key, then) {
  const isPaused = key.status === "paused";
  const act = async () => {
    await post(keyPath(key.id, isPaused ? "resume" : "pause"));
    then();
  };
  if (isPaused) confirmFirst("Resume this key", ["Let ", h("b", null, key.id), " call again?"], "Resume", act);
  else
    confirmFirst(
      "Pause this key",
      ["Refuse calls with ", h("b", null, key.id), " until it is resumed? They get 401 within seconds."],
      "Pause",
      act,
    );
}

const STATUS = { active: "fine", paused: "near", expired: "near", revoked: "full" };

export const statusPill = (key) => h("span", { class: `pill ${STATUS[key.status] ?? ""}` }, key.status);

/** A key in one line: its id, whether it works, its team, what it may call, until when. */
export const keyLine = (key) =>
  h(
    "p",
    { class: "key-line" },
    h("b", { class: "mono" }, key.id),
    " ",
    statusPill(key),
    key.team && [" · ", key.team],
    ` · ${key.models.includes("*") ? "all models" : key.models.join(", ")}`,
    key.expires && ` · expires ${minute(key.expires)}`,
  );

/** End the sessions of the owner of a key. */
export function askEndSessions(person) {
  confirmFirst(
    "End her sessions",
    [
      "End every session of ",
      h("b", null, person),
      " at this dashboard? Who can still sign in as this person can begin another. Keys go on working.",
    ],
    "End sessions",
    () => post(`people/${encodeURIComponent(person)}/end_sessions`),
  );
}

export function askRevoke(key, then) {
  confirmFirst(
    "Revoke this key",
    [
      "Refuse ",
      h("b", null, key.id),
      " for ever? Calls with it get 401 within seconds. ",
      "Its usage stays in the reports, and nobody can have its id again.",
    ],
    "Revoke",
    async () => {
      await remove(keyPath(key.id));
      then();
    },
  );
}
