// Who uses what, and what it costs: today and the last 30 days, from the same sums as `gateway usage`.

import { DayChart } from "./chart.js";
import { DAYS, LastDays } from "./days.js";
import { fill, h } from "./dom.js";
import { NOTHING, day } from "./format.js";
import { livePanel } from "./live.js";
import { poll } from "./poll.js";
import { into } from "./states.js";
import { MEASURES, NUMBERS, dayInNumbers, total, totals } from "./sums.js";
import { switcher } from "./switcher.js";
import { Table, filterField } from "./table.js";

const DAYS_EVERY_MS = 60_000;
const TODAY_EVERY_MS = 15_000;
const GROUPS = ["key", "team", "model", "upstream"];
const LINKED = { key: "keys", team: "teams" };

export function overview(main, { feed, signal }) {
  const state = { period: "month", group: "key", measure: "tokens", days: null };
  const last = new LastDays(signal);
  const sums = h("div");
  const chart = new DayChart();
  const chartPlace = h("div");
  const byDay = new Table([{ title: "Day", sort: (row) => row.day, show: (row) => row.day }, ...NUMBERS], {
    caption: "Usage by day",
    name: (row) => row.day,
    sort: 0,
  });
  const breakdown = h("div");
  let table = null;
  let text = "";
  const filter = filterField("Filter by name", (value) => {
    text = value;
    table?.filter(value);
  });

  function drawDays() {
    const rows = state.days;
    const measure = MEASURES[state.measure];
    const all = total(rows);
    fill(sums, totals(state.period === "today" ? rows.at(-1) : all));
    if (!chartPlace.contains(chart.node))
      fill(
        chartPlace,
        chart.node,
        h("details", { class: "as-table" }, h("summary", null, "The same as a table"), byDay.node),
      );
    chart.show(rows, {
      ...measure,
      say: dayInNumbers,
      total: [h("b", null, `${DAYS} days`), ` ${dayInNumbers(all)}`],
      summary: `${measure.title} by day, ${DAYS} days: ${dayInNumbers(all)}. The table below says the same.`,
    });
    byDay.show(rows.filter((row) => row.requests));
  }

  const lookAtDays = () =>
    into(
      chartPlace,
      signal,
      async () => {
        const known = new Map((await last.by("day")).map((row) => [row.day, row]));
        state.days = Array.from({ length: DAYS }, (_, place) => day(DAYS - 1 - place)).map(
          (name) => known.get(name) ?? { day: name, ...total([]), estimated_percent: 0 },
        );
        drawDays();
      },
      lookAtDays,
    );

  let wanted = 0;
  const lookAtGroups = () =>
    into(
      breakdown,
      signal,
      async () => {
        const { group } = state;
        const mine = ++wanted;
        const data = await (state.period === "today" ? last.today(group) : last.by(group));
        if (mine !== wanted) return; // something else was chosen meanwhile
        const most = Math.max(...data.map((row) => row.total_tokens), 1);
        if (table?.group !== group) {
          const name = {
            title: group[0].toUpperCase() + group.slice(1),
            sort: (row) => row[group],
            show: (row) => named(row, group, table.most),
          };
          table = Object.assign(
            new Table([name, ...NUMBERS], {
              caption: `Usage by ${group}`,
              name: (row) => row[group],
              sort: 6,
              filter: (row, part) => row[group].toLowerCase().includes(part),
              none: "No calls in this time.",
            }),
            { group },
          );
          fill(breakdown, table.node);
          table.text = text.trim().toLowerCase();
        }
        table.most = most;
        table.show(data);
      },
      lookAtGroups,
    );

  fill(
    main,
    livePanel(feed, signal),
    h(
      "section",
      { "aria-labelledby": "usage-title" },
      h(
        "div",
        { class: "bar" },
        h("h2", { id: "usage-title" }, "Usage"),
        switcher("Period", { today: "Today", month: `${DAYS} days` }, state.period, (period) => {
          state.period = period;
          if (state.days) drawDays();
          lookAtGroups();
        }),
        switcher(
          "What the chart shows",
          Object.fromEntries(Object.entries(MEASURES).map(([name, { title }]) => [name, title])),
          state.measure,
          (measure) => {
            state.measure = measure;
            if (state.days) drawDays();
          },
        ),
      ),
      sums,
      h("div", { class: "panel" }, chartPlace),
    ),
    h(
      "section",
      { "aria-labelledby": "who-title" },
      h(
        "div",
        { class: "bar" },
        h("h2", { id: "who-title" }, "By"),
        switcher("Group by", Object.fromEntries(GROUPS.map((name) => [name, name])), state.group, (group) => {
          state.group = group;
          lookAtGroups();
        }),
        filter,
      ),
      h("div", { class: "panel flush" }, breakdown),
    ),
  );
  poll(lookAtDays, DAYS_EVERY_MS, signal);
  let looked = 0;
  poll(
    async () => {
      if (state.period !== "today" && Date.now() - looked < DAYS_EVERY_MS) return true;
      const isDone = await lookAtGroups();
      if (isDone) looked = Date.now();
      return isDone;
    },
    TODAY_EVERY_MS,
    signal,
  );
}

function named(row, group, most) {
  const share = h("span", { class: "share", "aria-hidden": "true" });
  share.style.width = `${(100 * row.total_tokens) / most}%`;
  const name = row[group] || NOTHING;
  return h(
    "span",
    { class: "named" },
    share,
    group in LINKED && row[group]
      ? h("a", { href: `#${LINKED[group]}/${encodeURIComponent(row[group])}`, class: "mono" }, name)
      : h("span", { class: "mono" }, name),
  );
}
