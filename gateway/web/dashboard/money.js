// The first answer: what this month costs, what it will cost, and whether that is within the budget; of each team, too.

import { address } from "./address.js";
import { get, getCsv } from "./api.js";
import { thinBar } from "./bars.js";
import { fill, h } from "./dom.js";
import { NOTHING, count, many, monthInWords, percent, usd } from "./format.js";
import { MonthChart } from "./month_chart.js";
import { change } from "./spending.js";
import { into } from "./states.js";
import { Table } from "./table.js";

/** Whether the expected spend of a row is within its budget: the kind of a pill, and words; null: there is no budget. */
export function verdict({ spent_usd, end_usd, low_usd, high_usd, budget_usd }) {
  if (budget_usd === null) return null;
  if (spent_usd >= budget_usd) return ["full", "budget spent"];
  if (low_usd > budget_usd) return ["full", "over budget by the end"];
  if (end_usd > budget_usd) return ["near", "probably over budget"];
  return high_usd > budget_usd ? ["near", "perhaps over budget"] : ["fine", "within budget"];
}

const pill = (found) => found && h("span", { class: `pill ${found[0]}`, data: { verdict: found[0] } }, found[1]);

const range = (row) => `${usd(row.low_usd)} to ${usd(row.high_usd)}`;

const changed = (row) => change(row.before_usd, row.compared_usd);

const unpriced = (row) => row.unpriced > 0 && h("span", { class: "unknown", title: `The cost of ${many(row.unpriced, "call")} is unknown` }, " + ?");

function budgetBar(row) {
  if (row.budget_usd === null) return h("span", { class: "unknown" }, "none");
  const [kind] = verdict(row);
  return thinBar(kind, { used: row.spent_usd, reserved: 0, limit: row.budget_usd }, h("small", { class: "moment" }, `of ${usd(row.budget_usd)}`));
}

function teamTable(isLinked, signal, money) {
  return new Table(
    [
      { title: "Team", show: (row) => row.team || "no team", sort: (row) => row.team },
      { title: "Spent", isNumber: true, show: (row) => [usd(row.spent_usd), unpriced(row)], sort: (row) => row.spent_usd },
      { title: "Of the budget", class: "quota-cell", show: budgetBar, sort: (row) => (row.budget_usd ? row.spent_usd / row.budget_usd : null), hint: "The team’s quota of US dollars per month" },
      {
        title: "Expected at the end",
        isNumber: true,
        show: (row) => [h("span", { class: verdict(row)?.[0] === "full" ? "bad" : null }, usd(row.end_usd)), h("small", null, ` ${range(row)}`)],
        sort: (row) => row.end_usd,
        hint: "Spent, and for each day left the mean of the last 7 whole days; beside it with the cheapest and with the dearest of the last four weeks",
      },
      { title: "Change", isNumber: true, show: (row) => changed(row) || NOTHING, sort: (row) => (row.before_usd ? row.compared_usd / row.before_usd : null), hint: "The whole days of this month, compared with the same days of last month" },
    ],
    {
      caption: "Spend of teams this month",
      name: (row) => row.team,
      sort: 1,
      href: (row) => (isLinked && row.team ? address("teams", row.team) : null),
      none: "No team has spent anything this month.",
      total: () => money(),
      whole: () => getCsv("money", null, signal),
    },
  );
}

/** The numbers of the chart, day by day. */
const dayTable = () =>
  new Table(
    [
      { title: "Day", isExact: true, sort: (row) => row.day, show: (row) => row.day },
      ...Object.entries({ "This month": "spent_usd", "Last month": "before_usd" }).map(([title, name]) => ({
        title,
        hint: "The sum up to the end of this day",
        isNumber: true,
        sort: (row) => row[name],
        show: (row) => (row[name] === null ? NOTHING : usd(row[name])),
      })),
    ],
    { caption: "Spend up to each day", name: (row) => row.day, sort: 0, isDown: false },
  );

/** The figures beside the chart. */
function facts(money) {
  const found = verdict(money);
  const said = changed(money);
  return h(
    "div",
    { class: "answer-facts", data: { figure: "spend" } },
    h("h3", null, `Spent in ${monthInWords(money.month)}`),
    h("p", { class: "figure", data: { value: money.spent_usd } }, usd(money.spent_usd), unpriced(money)),
    money.budget_usd === null
      ? h("p", { class: "more" }, "There is no budget: a quota of US dollars per month of the gateway, or of teams, is one.")
      : h("p", { class: "more" }, `${percent(money.spent_usd, money.budget_usd)} of the ${money.budget_of === "teams" ? "teams’ budgets" : "budget"}, `, h("span", { data: { budget: money.budget_usd } }, usd(money.budget_usd)), " ", pill(found)),
    h("p", { class: "more" }, "Expected at the end: ", h("b", { data: { value: money.end_usd } }, usd(money.end_usd)), h("br"), `${range(money)}, by the cheapest and the dearest of the last four weeks`),
    said && h("p", { class: "more" }, h("b", null, said), ` compared with the same days of last month (${usd(money.before_usd)})`),
    money.unpriced > 0 && h("p", { class: "more" }, `Without ${count(money.unpriced)} calls of unknown cost.`),
  );
}

/** The answer as a section; `look` asks again. */
export function moneyPanel(signal, { isLinked }) {
  const place = h("div");
  const [beside, teams] = [h("div"), h("div", { class: "answer-teams" })];
  const chart = new MonthChart();
  let shown = null;
  const table = teamTable(isLinked, signal, () => shown);
  const days = dayTable();
  const byDay = h("details", { class: "as-table" }, h("summary", null, "The same as a table"), days.node);
  const look = () =>
    into(
      place,
      signal,
      async () => {
        const money = (shown = await get("money", null, signal));
        fill(beside, facts(money));
        fill(teams, money.teams.some((row) => row.team) && table.node);
        if (!place.contains(chart.node)) fill(place, h("div", { class: "answer-money" }, beside, h("div", { class: "answer-chart" }, chart.node, byDay)), teams);
        chart.show(money);
        days.show(money.days);
        table.show(money.teams);
      },
      look,
    );
  const node = h(
    "section",
    { class: "answer", "aria-labelledby": "money-title" },
    h("h2", { id: "money-title" }, "Money"),
    h("div", { class: "panel" }, place),
  );
  return { node, look };
}
