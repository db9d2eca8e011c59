// The spend of a month as a line that adds up, beside last month's, the budget and what is expected.

import { LETTER, ROOM, scaleTop } from "./chart.js";
import { fill, h, s } from "./dom.js";
import { axisUsd, stepInWords, stepShort, usd } from "./format.js";

const HEIGHT = 230;
const DAY_MS = 86_400_000;
const FAR = 4; // times the rest: a higher budget is above the scale, or the lines would be flat

/** The places of a drawing: `x` of a number of days since the month began, `y` of an amount. */
const places = (width, left, days, top) => ({
  x: (day) => left + ((width - left - ROOM.right) * day) / days,
  y: (amount) => ROOM.top + (HEIGHT - ROOM.top - ROOM.bottom) * (1 - amount / top),
});

const path = (points, { x, y }) => points.map(([day, amount]) => `${x(day).toFixed(1)},${y(amount).toFixed(1)}`).join(" ");

/** The chart in one sentence. */
export function monthInWords(money) {
  const spent = `${usd(money.spent_usd)} is spent in ${money.month}, and ${usd(money.end_usd)} expected at its end (${usd(money.low_usd)} to ${usd(money.high_usd)})`;
  return `${spent}; ${money.budget_usd === null ? "there is no budget" : `the budget is ${usd(money.budget_usd)}`}.`;
}

export class MonthChart {
  constructor() {
    this.readout = h("p", { class: "readout", "aria-live": "polite" });
    this.legend = h("p", { class: "legend" });
    this.svg = s("svg", { class: "chart month", role: "img", "aria-label": "No data yet", tabindex: "0", height: HEIGHT });
    this.node = h("div", { class: "chart-box" }, h("div", { class: "chart-head" }, this.readout, this.legend), this.svg);
    this.chosen = null;
    this.svg.addEventListener("pointermove", ({ clientX }) => this.choose(this.dayAt(clientX)));
    this.svg.addEventListener("pointerleave", () => this.choose(null));
    this.svg.addEventListener("blur", () => this.choose(null));
    this.svg.addEventListener("keydown", (event) => this.onKey(event));
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.node);
  }

  show(money) {
    this.money = money;
    this.svg.setAttribute("aria-label", `${monthInWords(money)} The arrow keys lead from day to day.`);
    const line = (kind, title) => h("span", null, h("i", { class: `line ${kind}`, "aria-hidden": "true" }), title);
    fill(
      this.legend,
      line("spent", "this month"),
      line("ghost", "last month"),
      line("cone", "expected"),
      money.budget_usd !== null && line("budget", "budget"),
    );
    this.draw();
  }

  dayAt(clientX) {
    if (!this.at) return null;
    const place = clientX - this.svg.getBoundingClientRect().left;
    const day = this.money.days.findIndex((_, number) => place < this.at.x(number + 1));
    return place < this.at.x(0) || day < 0 ? null : day;
  }

  onKey(event) {
    if (!this.money) return;
    const last = this.money.days.length - 1;
    const today = this.money.days.findLastIndex((each) => each.spent_usd !== null);
    const to = { ArrowLeft: Math.max(0, (this.chosen ?? today + 1) - 1), ArrowRight: Math.min(last, (this.chosen ?? today - 1) + 1), Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.choose(to);
  }

  choose(day) {
    if (!this.money || (day === this.chosen && this.readout.hasChildNodes())) return;
    this.chosen = day;
    const row = this.money.days[day];
    const said = row && [
      row.spent_usd === null ? null : `${usd(row.spent_usd)} by then`,
      row.before_usd === null ? null : `${usd(row.before_usd)} last month`,
    ].filter(Boolean);
    fill(this.readout, row ? [h("b", null, stepInWords(row.day)), ` ${said.join(" · ") || "not yet"}`] : "Spend since the first of the month");
    for (const mark of this.svg.querySelectorAll(".at")) mark.remove();
    if (row) this.svg.append(s("line", { class: "at", x1: this.at.x(day + 1), x2: this.at.x(day + 1), y1: ROOM.top, y2: HEIGHT - ROOM.bottom }));
  }

  draw() {
    const width = this.node.clientWidth;
    if (!this.money || !width) return;
    const { days, at, month, spent_usd, end_usd, low_usd, high_usd, budget_usd } = this.money;
    const most = Math.max(high_usd, ...days.map((each) => Math.max(each.spent_usd ?? 0, each.before_usd ?? 0)));
    const isFar = budget_usd !== null && most > 0 && budget_usd > FAR * most;
    const top = scaleTop(isFar || budget_usd === null ? most : Math.max(most, budget_usd));
    const names = [0, 1, 2, 3, 4].map((line) => axisUsd((top * line) / 4, top / 4));
    const left = Math.max(ROOM.left, 10 + LETTER * Math.max(...names.map((name) => name.length)));
    this.at = places(width, left, days.length, top);
    const { x, y } = this.at;
    const now = (Date.parse(at) - Date.parse(`${month}-01T00:00:00Z`)) / DAY_MS;
    const known = days.filter((each) => each.spent_usd !== null).length;
    const spent = [[0, 0], ...days.slice(0, known - 1).map((each, day) => [day + 1, each.spent_usd]), [now, spent_usd]];
    const ghost = [[0, 0], ...days.flatMap((each, day) => (each.before_usd === null ? [] : [[day + 1, each.before_usd]]))];
    const end = days.length;
    const every = Math.ceil(days.length / Math.max(2, Math.floor((width - left) / 90)));
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.setAttribute("width", width);
    fill(
      this.svg,
      names.map((name, line) => {
        const height = y((top * line) / 4);
        return [
          s("line", { class: line ? "grid" : "axis", x1: left, x2: width - ROOM.right, y1: height, y2: height }),
          s("text", { class: "tick end", x: left - 8, y: height + 4 }, name),
        ];
      }),
      days.map(
        (each, day) =>
          day % every === 0 && s("text", { class: "tick", x: x(day), y: HEIGHT - 6 }, stepShort(each.day)),
      ),
      s("polyline", { class: "ghost", points: path(ghost, this.at) }),
      s("polygon", { class: "cone", points: path([[now, spent_usd], [end, low_usd], [end, high_usd]], this.at) }),
      s("polyline", { class: "likely", points: path([[now, spent_usd], [end, end_usd]], this.at) }),
      budget_usd !== null && [
        !isFar && s("line", { class: "budget", x1: left, x2: width - ROOM.right, y1: y(budget_usd), y2: y(budget_usd) }),
        s("text", { class: "tick", x: left + 6, y: isFar ? ROOM.top + 4 : y(budget_usd) + (y(budget_usd) < 24 ? 14 : -5) }, isFar ? `budget ${usd(budget_usd)}, above this scale` : `budget ${usd(budget_usd)}`),
      ],
      s("polyline", { class: "spent", points: path(spent, this.at) }),
      s("circle", { class: "spent", cx: x(now), cy: y(spent_usd), r: 3.5 }),
    );
    const chosen = this.chosen;
    this.chosen = undefined;
    this.choose(chosen);
  }
}
