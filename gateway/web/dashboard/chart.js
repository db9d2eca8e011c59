// Drawings: one bar for each day, hour or minute, and the small curve of a live number. A table always has the same numbers.

import { fill, h, s } from "./dom.js";
import { stepInWords, stepOf, stepShort } from "./format.js";

const HEIGHT = 190;
export const ROOM = { top: 10, right: 4, bottom: 22, left: 52 };
export const LETTER = 7; // pixels of a letter of the axis, at most
const HOURS_NAMED = 48; // at most
const ROUND = [5, 10, 15, 30, 60]; // minutes that are named
const STEPS = [1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10];

/** The top of a scale with four even steps that holds `most`. */
export function scaleTop(most) {
  if (most <= 0) return 1;
  const rough = most / 4;
  const ten = 10 ** Math.floor(Math.log10(rough));
  return 4 * ten * STEPS.find((step) => step * ten >= rough * 0.9999999);
}

/**
 * `parts`: [{name, class, of(row) -> number, pick}], stacked; `pick` is called when one is chosen. `format`: an amount alone,
 * or for the axis with its step. `say(row)`: the whole day in words. `events(row)`: what happened then, in words. `isOneNumber`: the parts are not listed one by one.
 */
export class DayChart {
  constructor() {
    this.readout = h("p", { class: "readout", "aria-live": "polite" });
    this.legend = h("p", { class: "legend" });
    this.svg = s("svg", { class: "chart", role: "img", "aria-label": "No data yet", tabindex: "0", height: HEIGHT });
    this.node = h(
      "div",
      { class: "chart-box" },
      h("div", { class: "chart-head" }, this.readout, this.legend),
      this.svg,
    );
    this.chosen = null;
    this.left = ROOM.left;
    this.svg.addEventListener("pointermove", (event) => this.choose(this.placeAt(event.clientX)));
    this.svg.addEventListener("pointerleave", () => this.choose(null));
    this.svg.addEventListener("blur", () => this.choose(null));
    this.svg.addEventListener("keydown", (event) => this.onKey(event));
    this.watcher = new ResizeObserver(() => this.draw());
    this.watcher.observe(this.node);
  }

  show(rows, of) {
    Object.assign(this, { rows, of });
    this.svg.setAttribute("aria-label", of.summary);
    fill(
      this.legend,
      of.parts.length > 1 &&
        of.parts.map((part) => {
          const said = [h("i", { class: `swatch ${part.class}`, "aria-hidden": "true" }), part.name];
          return part.pick
            ? h("button", { type: "button", class: "pick", title: `Filter by ${part.name}`, onclick: part.pick }, said)
            : h("span", null, said);
        }),
    );
    this.draw();
  }

  placeAt(x) {
    if (!this.rows) return null;
    const box = this.svg.getBoundingClientRect();
    const place = Math.floor(((x - box.left - this.left) / (box.width - this.left - ROOM.right)) * this.rows.length);
    return place >= 0 && place < this.rows.length ? place : null;
  }

  onKey(event) {
    if (!this.rows) return;
    const last = this.rows.length - 1;
    const at = this.chosen ?? last + 1;
    const to = { ArrowLeft: Math.max(0, at - 1), ArrowRight: Math.min(last, at + 1), Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.choose(to);
  }

  choose(place) {
    if (!this.rows || (place === this.chosen && this.readout.hasChildNodes())) return;
    this.chosen = place;
    const row = this.rows[place];
    fill(this.readout, row ? [h("b", null, stepInWords(stepOf(row))), ` ${this.of.say(row)}`, (this.of.events?.(row) ?? []).map((text) => ` · ${text}`)] : this.of.total);
    if (row && this.of.parts.length > 1 && !this.of.isOneNumber) this.readout.append(this.split(row));
    for (const [number, mark] of this.svg.querySelectorAll(".mark").entries())
      mark.classList.toggle("on", number === place);
  }

  /** The parts of a row in words, the largest first. */
  split(row) {
    return this.of.parts
      .map((part) => [part.name, part.of(row) ?? 0])
      .filter(([, amount]) => amount > 0)
      .sort((one, other) => other[1] - one[1])
      .map(([name, amount]) => ` · ${name} ${this.of.format(amount)}`)
      .join("");
  }

  draw() {
    const width = this.node.clientWidth;
    if (!this.rows || !width) return;
    const { parts, format } = this.of;
    const sum = (row) => parts.reduce((all, part) => all + (part.of(row) ?? 0), 0);
    const top = scaleTop(Math.max(...this.rows.map(sum)));
    const names = [0, 1, 2, 3, 4].map((line) => format((top * line) / 4, top / 4));
    const left = (this.left = Math.max(ROOM.left, 10 + LETTER * Math.max(...names.map((name) => name.length))));
    const inner = { width: width - left - ROOM.right, height: HEIGHT - ROOM.top - ROOM.bottom };
    const y = (amount) => ROOM.top + inner.height * (1 - amount / top);
    const step = inner.width / this.rows.length;
    const bar = Math.max(1, Math.min(26, step - (step > 8 ? 4 : 1)));
    const every = Math.ceil(64 / step);
    const isOfDays = this.rows.length > HOURS_NAMED && this.rows[0].hour !== undefined; // days are named, where they begin
    const days = Math.ceil(64 / (24 * step));
    const round = ROUND.find((minutes) => minutes * step >= 64) ?? 60;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.svg.setAttribute("width", width);
    fill(
      this.svg,
      names.map((name, line) => {
        const at = y((top * line) / 4);
        return [
          s("line", { class: line ? "grid" : "axis", x1: left, x2: width - ROOM.right, y1: at, y2: at }),
          s("text", { class: "tick end", x: left - 8, y: at + 4 }, name),
        ];
      }),
      this.rows.map((row, place) => {
        const middle = left + step * (place + 0.5);
        let below = 0;
        const pieces = parts.map((part) => {
          const amount = part.of(row) ?? 0;
          const from = below;
          below += amount;
          const height = Math.max(amount ? 1 : 0, y(from) - y(below));
          return (
            height > 0 &&
            s("rect", {
              class: `bar ${part.class} ${part.pick ? "pickable" : ""}`.trim(),
              onclick: part.pick,
              x: middle - bar / 2,
              y: y(from) - height,
              width: bar,
              height,
              rx: Math.min(2, height / 2),
            })
          );
        });
        const at = stepOf(row);
        const isNamed = row.minute ? Number(at.slice(14)) % round === 0 : isOfDays ? at.endsWith("T00") && (place / 24) % days === 0 : (this.rows.length - 1 - place) % every === 0;
        return s(
          "g",
          { class: "mark" },
          s("rect", { class: "column", x: left + step * place, y: ROOM.top, width: step, height: inner.height }),
          pieces,
          (this.of.events?.(row) ?? []).length > 0 && s("path", { class: "event", d: `M${middle - 4} ${ROOM.top - 8}h8l-4 7z` }, s("title", null, this.of.events(row).join(", "))),
          isNamed &&
            middle - left > 14 &&
            s("text", { class: "tick middle", x: Math.min(middle, width - 20), y: HEIGHT - 6 }, stepShort(isOfDays ? at.slice(0, 10) : at)),
        );
      }),
    );
    const chosen = this.chosen;
    this.chosen = undefined;
    this.choose(chosen);
  }
}

/** The last values of a number, without any scale, to be shown beside it. */
export function spark(values) {
  const width = 120;
  const height = 26;
  const most = Math.max(...values, 0);
  const at = (value, place) => [
    (width * place) / Math.max(1, values.length - 1),
    height - 2 - (most ? (value / most) * (height - 4) : 0),
  ];
  const points = values
    .map((value, place) =>
      at(value, place)
        .map((number) => number.toFixed(1))
        .join(","),
    )
    .join(" ");
  return s(
    "svg",
    { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    most > 0 &&
      values.length > 1 && [
        s("polygon", { points: `0,${height} ${points} ${width},${height}` }),
        s("polyline", { points, "vector-effect": "non-scaling-stroke" }),
      ],
  );
}
