// Making a team, and changing what its keys may spend together and which keys its members may make.

import { patch, post, teamPath } from "./api.js";
import { openDialog } from "./dialog.js";
import { h } from "./dom.js";
import { field, input, modelsOf, quotasField } from "./fields.js";
import { settingsForm } from "./form.js";
import { quotaList } from "./quota_rows.js";

const BY_KEY = { pause: "pause", rotate: "rotate" };

/** The operations that members may use: `node`, and `read()` for the setting of the team, null for none. */
function membersField(members) {
  const may = h("input", { type: "checkbox", name: "members", checked: Boolean(members) });
  const most = input(members?.max_keys ?? 3, { type: "number", min: "1", max: "100", required: true });
  const models = input((members?.models ?? ["*"]).join(", "));
  const actions = Object.entries(BY_KEY).map(([name, title]) => {
    const control = h("input", { type: "checkbox", name: `by_key.${name}`, checked: Boolean(members?.by_key?.includes(name)) });
    return { name, control, node: h("label", { class: "check" }, control, ` A key may ${title} itself, without a sign-in`) };
  });
  const more = h(
    "div",
    null,
    h(
      "div",
      { class: "grid" },
      field("members.max_keys", "Keys of each member", most, "A revoked key counts for a day."),
      field("members.models", "Models of these keys", models, "Patterns with commas between; * is all."),
    ),
    h("div", { class: "checks", data: { param: "members.by_key" } }, actions.map(({ node }) => node), h("span", { class: "trouble", role: "alert" })),
  );
  const tell = () => {
    more.hidden = !may.checked;
    most.disabled = !may.checked; // or a number that is hidden and wrong would keep the form from being sent
  };
  may.addEventListener("change", tell);
  tell();
  return {
    node: h("fieldset", null, h("legend", null, "Members"), h("label", { class: "check" }, may, " Members make and manage keys of their own"), more),
    read: () =>
      may.checked
        ? {
            max_keys: Number(most.value),
            models: modelsOf(models.value),
            by_key: actions.filter(({ control }) => control.checked).map(({ name }) => name),
          }
        : null,
  };
}

/** The form for a new team (`team` is null), or for an existing one. `then` is called with its name. */
export function editTeam(team, then) {
  const isNew = team === null;
  openDialog(
    isNew ? "New team" : `Edit team ${team.name}`,
    (close) => {
      const name = input("", {
        required: true,
        pattern: "[a-z0-9][a-z0-9_.\\-]{0,62}",
        autofocus: true,
        title: "Small letters, digits, - _ . (at most 63)",
      });
      const quotas = quotaList(team?.quotas, "No quota: its keys together may spend without a limit of the team.");
      const each = quotaList(team?.member_quotas, "No quota: each may spend what the team has.");
      const members = membersField(team?.members);
      const read = () => ({ quotas: quotas.read(), member_quotas: each.read(), members: members.read() });
      const before = read();
      const trouble = h("p", { class: "trouble", role: "alert" });
      const save = h("button", { type: "submit", class: "primary" }, isNew ? "Create" : "Save");

      async function send() {
        const wish = read();
        if (isNew) await post("teams", { name: name.value.trim(), ...wish });
        else {
          // Changed fields only, to keep concurrent changes of other users.
          const changes = Object.entries(wish).filter(([part, value]) => JSON.stringify(value) !== JSON.stringify(before[part]));
          if (changes.length) await patch(teamPath(team.name), Object.fromEntries(changes));
        }
        close();
      }

      return settingsForm(
        { save, trouble, send, then: () => then(isNew ? name.value.trim() : team.name) },
        isNew && field("name", "Name", name, "In keys, metrics and reports."),
        quotasField("Quotas of all its keys together", quotas),
        quotasField("Quotas of each of its people, over her keys in this team", each, "member_quotas"),
        members.node,
        h("p", { class: "note" }, "The models of a key are settings of the key; a team limits what its keys spend."),
        trouble,
        h("footer", null, h("button", { type: "button", onclick: close }, "Cancel"), save),
      );
    },
    { kind: "wide" },
  );
}
