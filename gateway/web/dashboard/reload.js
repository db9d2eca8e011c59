// Reload of the configuration: shows the changes, and applies them on confirmation.

import { get, post } from "./api.js";
import { attempt, openDialog } from "./dialog.js";
import { fill, h } from "./dom.js";
import { many } from "./format.js";
import { into } from "./states.js";
import { Table } from "./table.js";

const COLUMNS = [
  { title: "Setting", class: "mono", sort: (row) => row.setting, show: (row) => row.setting },
  { title: "Change", class: "mono", sort: (row) => row.what, show: (row) => row.what },
  { title: "Applied by", sort: (row) => row.needs_restart, show: (row) => (row.needs_restart ? h("span", { class: "pill full" }, "a restart") : "a reload") },
];

const WHY = {
  invalid_configuration: "The file has faults, so nothing would be changed:",
  restart_required: "These settings need a restart of the gateway, so nothing would be changed:",
};

function found(answer) {
  const changes = new Table(COLUMNS, { caption: "Changes of the configuration", name: (row) => row.setting, sort: null });
  changes.show(answer.changes);
  return [
    answer.code && h("div", { class: "why bad", data: { refused: answer.code } }, h("p", null, WHY[answer.code]), h("ul", null, answer.faults.map((fault) => h("li", { class: "mono" }, fault)))),
    answer.changes.length > 0
      ? [h("p", null, `The files differ from what is in use (number ${answer.generation}) in ${many(answer.changes.length, "setting")}:`), h("div", { class: "panel flush" }, changes.node)]
      : !answer.code && h("p", { class: "why good" }, `The files say what is in use (number ${answer.generation}): nothing would change.`),
    answer.applies_by_itself && h("p", { class: "note" }, "A changed file is applied by itself after a moment (server.reload_on_change)."),
  ];
}

/** Show what a reload would change, with a button that applies it; `then` is called when it is applied. */
export function askReload(then) {
  const ended = new AbortController();
  openDialog(
    "Reload the configuration",
    (close) => {
      const place = h("div", { class: "reload-preview" });
      const trouble = h("p", { class: "trouble", role: "alert" });
      const apply = h("button", { type: "button", class: "primary", disabled: true }, "Apply");
      const look = () =>
        into(
          place,
          ended.signal,
          async () => {
            const answer = await get("reload", null, ended.signal);
            fill(place, found(answer));
            apply.disabled = answer.code !== null || !answer.changes.length;
          },
          look,
        );
      apply.addEventListener("click", async () => {
        const error = await attempt(apply, trouble, async () => {
          const { generation, changed } = await post("reload");
          fill(place, h("p", { class: "why good", role: "status" }, `Applied: configuration number ${generation} is in use, with ${many(changed.length, "change")}.`));
          then();
        });
        if (!error) apply.disabled = true;
      });
      look();
      const again = h("button", { type: "button", onclick: look }, "Read again");
      return h("div", null, place, trouble, h("footer", null, h("button", { type: "button", onclick: close }, "Close"), again, apply));
    },
    { kind: "wide", onClose: () => ended.abort() },
  );
}
