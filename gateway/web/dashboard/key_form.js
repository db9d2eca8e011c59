// Making a key, and changing what it may do: the settings of the file, as a form.

import { keyPath, patch, post } from "./api.js";
import { connectPanel } from "./connect.js";
import { openDialog, showSecret } from "./dialog.js";
import { h } from "./dom.js";
import { choice, field, input, modelsOf, quotasField } from "./fields.js";
import { settingsForm } from "./form.js";
import { quotaList } from "./quota_rows.js";
import { teamChoice } from "./team_choice.js";
import { modelsToCall, testCall } from "./test_call.js";

const LIMITS = {
  n: "n",
  best_of: "best_of",
  logprobs: "logprobs",
  stop: "stop sequences",
  max_tokens: "max_tokens",
  max_audio_s: "seconds of audio",
};

// Presets of a new key: quotas, which can be changed before it is made, and the days until it expires.
const PRESETS = {
  none: { title: "nothing", quotas: [] },
  person: { title: "a person", quotas: [{ requests: 60, per: "minute" }, { usd: 20, per: "month" }] },
  ci: { title: "CI", quotas: [{ requests: 300, per: "minute" }, { tokens: 1_000_000, per: "day" }] },
  intern: { title: "an intern", quotas: [{ requests: 20, per: "minute" }, { usd: 0.5, per: "day" }], days: 90 },
};
const DAY_MS = 86_400_000;

const PRIORITIES = { interactive: "interactive: first", normal: "normal", batch: "batch: last" };

/** Labels as they are typed: `name: value`, with commas between. */
export const labelsInWords = (labels) => Object.entries(labels ?? {}).map(([name, value]) => `${name}: ${value}`).join(", ");

const labelsOf = (text) =>
  Object.fromEntries(
    text
      .split(",")
      .filter((each) => each.trim())
      .map((each) => each.split(/[:=](.*)/s).map((part) => part.trim()))
      .map(([name, value = ""]) => [name, value]),
  );
const parts = (text) => text.split(/[\s,]+/).filter(Boolean);
const numberOf = (text) => (text.trim() === "" ? null : Number(text));

const warned = ({ warnings = [] }) => warnings.length > 0 && h("p", { class: "why bad" }, warnings.join(" "));

/** The form for a new key (`key` is null), or for one that is there. */
export function editKey(key, then, { role, publicUrl, can, teams = null }) {
  const isNew = key === null;
  const isOwn = role === "member";
  const old = key ?? { models: ["*"], limits: {}, quotas: [], ips: [], on_exceeded: "deny" };
  openDialog(
    isNew ? "New key" : `Edit ${key.id}`,
    (close, dialog) => {
      const team = teamChoice(old.team, can, isOwn ? teams : null);
      const controls = {
        id: input("", {
          required: true,
          pattern: "[a-z0-9][a-z0-9_.\\-]{0,62}",
          autofocus: true,
          title: "Small letters, digits, - _ . (at most 63)",
        }),
        team: team.control,
        models: input(isOwn && isNew ? "" : old.models.join(", "), isOwn && isNew ? { placeholder: "all that the team allows" } : {}),
        expires: input(old.expires ? new Date(old.expires).toISOString().slice(0, 16) : "", { type: "datetime-local" }),
        ips: input(old.ips.join(", "), { placeholder: "any network" }),
        max_parallel: input(old.max_parallel, { type: "number", min: "1", placeholder: "unlimited" }),
        on_exceeded: choice({ deny: "refuse the call", shadow: "count and report only" }, old.on_exceeded),
        owner: input(old.owner, { placeholder: "nobody", maxlength: "256" }),
        note: input(old.note, { maxlength: "1000" }),
        labels: input(labelsInWords(old.labels), { placeholder: "cost-center: 4711" }),
        priority: choice(PRIORITIES, old.priority ?? "normal"),
        weight: input(old.weight ?? 1, { type: "number", min: "1", max: "1000" }),
        deny: input((old.limits.deny ?? []).join(", "), { placeholder: "none" }),
      };
      const limits = Object.fromEntries(
        Object.keys(LIMITS).map((name) => [
          name,
          input(old.limits[name], { type: "number", min: "0", placeholder: "those of the API" }),
        ]),
      );
      const quotas = quotaList(old.quotas, "No quota: only those of its team and of the gateway, if any, limit what it spends.");
      const trouble = h("p", { class: "trouble", role: "alert" });
      const save = h("button", { type: "submit", class: "primary" }, isNew ? "Create" : "Save");

      function read() {
        const given = Object.fromEntries(
          Object.entries(limits)
            .map(([name, control]) => [name, numberOf(control.value)])
            .filter(([, value]) => value !== null),
        );
        const deny = parts(controls.deny.value);
        return {
          team: team.read(),
          models: modelsOf(controls.models.value),
          expires: controls.expires.value
            ? `${controls.expires.value}${controls.expires.value.length === 16 ? ":00" : ""}Z`
            : null,
          ips: parts(controls.ips.value),
          max_parallel: numberOf(controls.max_parallel.value),
          on_exceeded: controls.on_exceeded.value,
          limits: deny.length ? { ...given, deny } : given,
          quotas: quotas.read(),
          owner: controls.owner.value.trim() || null,
          note: controls.note.value.trim() || null,
          labels: labelsOf(controls.labels.value),
          priority: controls.priority.value,
          weight: numberOf(controls.weight.value) ?? 1,
        };
      }

      async function send() {
        await team.make();
        const wish = read();
        if (!isNew) {
          // Changed fields only, to keep concurrent changes of other users.
          const changes = Object.fromEntries(
            Object.entries(wish).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(before[name])),
          );
          if (Object.keys(changes).length) await patch(keyPath(key.id), changes);
          close();
          return;
        }
        // Fields that were not changed come from the defaults of the configuration.
        const named = Object.entries(wish).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(before[name]));
        const issued = await post("keys", { id: controls.id.value.trim(), ...Object.fromEntries(named) });
        close();
        const plain = issued.models.filter((each) => !/[*?[]/.test(each)).map((id) => ({ id }));
        const models = modelsToCall(issued.secret).catch(() => plain); // calls may be served at another address than this page
        const connect = connectPanel({ publicUrl, secret: issued.secret, models });
        showSecret("The new key", issued.id, issued.secret, warned(issued), connect, testCall(issued.secret));
      }

      const titles = Object.fromEntries(Object.entries(PRESETS).map(([name, { title }]) => [name, title]));
      const preset = choice(titles, "none", {
        name: "preset",
        onchange: () => {
          const { quotas: wanted, days } = PRESETS[preset.value];
          quotas.set(wanted);
          controls.expires.value = days ? new Date(Date.now() + days * DAY_MS).toISOString().slice(0, 16) : "";
        },
      });
      const form = settingsForm(
        { save, trouble, send, then },
        isNew && !isOwn && h("label", null, "Begin with the quotas of", preset),
        h(
          "div",
          { class: "grid" },
          isNew && field("id", "Id", controls.id, "In logs, metrics and reports; never used again for another."),
          h("div", null, field("team", "Team", team.control), team.fresh),
          field("models", "Models", controls.models, "Patterns with commas between; * is all."),
          field("expires", "Expires (UTC)", controls.expires),
          field("ips", "From networks", controls.ips, "10.0.0.0/8, 2001:db8::/32"),
          field("max_parallel", "Calls at once", controls.max_parallel),
          !isOwn && field("on_exceeded", "When a quota is spent", controls.on_exceeded),
          !isOwn && field("owner", "Owner", controls.owner, "A person, as she signs in: an e-mail address, mostly."),
          field("note", "Note", controls.note),
          !isOwn && field("labels", "Labels", controls.labels, "Reports group by them; commas between."),
          !isOwn && field("priority", "Where calls wait for room", controls.priority),
          !isOwn && field("weight", "Weight among waiting keys", controls.weight),
        ),
        quotasField("Quotas", quotas),
        h(
          "details",
          { open: Object.keys(old.limits).length > 0 },
          h("summary", null, "Limits on parameters"),
          h(
            "div",
            { class: "grid" },
            Object.entries(LIMITS).map(([name, title]) => field(`limits.${name}`, `Largest ${title}`, limits[name])),
            field("limits.deny", "Refused parameters", controls.deny),
          ),
        ),
        trouble,
        h("footer", null, h("button", { type: "button", onclick: close }, "Cancel"), save),
      );
      const before = isOwn && isNew ? { ...read(), team: null } : read(); // her team is always named
      return form;
    },
    { kind: "wide" },
  );
}
