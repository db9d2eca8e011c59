// Bars of a chart that are stacked by a group: the largest names each by themselves, the others as one.

import { stepOf } from "./format.js";

const SHOWN = 7;
/** The most names that are asked for by day or hour: more would be dear, and a chart shows the largest few alone. */
export const STACKED_AT_MOST = 60;

const COLOURS = 8;

/** A colour for each name, the same for a name on every chart, unless another one on this chart has it. */
function coloursOf(names) {
  const taken = new Map();
  for (const name of [...names].sort()) {
    let place = [...name].reduce((all, sign) => (all * 31 + sign.codePointAt(0)) >>> 0, 7) % COLOURS;
    while (taken.size < COLOURS && [...taken.values()].includes(place)) place = (place + 1) % COLOURS;
    taken.set(name, place);
  }
  return taken;
}

/** The largest names of sums by a group, which a chart shows one by one. */
export const largest = (byGroup, group, measure) =>
  [...byGroup].sort((one, other) => (measure.of(other) ?? 0) - (measure.of(one) ?? 0)).slice(0, SHOWN).map((row) => row[group]);

/** The parts of a chart without groups. */
export const plain = (measure) => [{ name: measure.title, class: "c1", of: measure.of }];

/**
 * The parts of a chart of `measure`, from sums by `group` and from sums by day (or hour) and `group`. `pick` is called with the name
 * of a chosen part. `isOfLargest`: the sums by step are those of the largest names alone, and the others are the rest of a step.
 */
export function stacked(byGroup, byStepAndGroup, group, measure, pick = null, isOfLargest = false) {
  const size = (row) => measure.of(row) ?? 0;
  const names = [...byGroup].sort((one, other) => size(other) - size(one)).map((row) => row[group]);
  const shown = names.slice(0, names.length > SHOWN + 1 ? SHOWN : SHOWN + 1);
  const amounts = new Map(byStepAndGroup.map((row) => [`${stepOf(row)} ${row[group]}`, size(row)]));
  const of = (name) => (row) => amounts.get(`${stepOf(row)} ${name}`) ?? 0;
  const colours = coloursOf(shown);
  const parts = shown.map((name) => ({
    name: name || `no ${group}`,
    class: `c${colours.get(name) + 1}`,
    of: of(name),
    pick: name && pick ? () => pick(name) : null,
  }));
  const others = names.slice(shown.length);
  if (others.length)
    parts.push({
      name: `${others.length} others`,
      class: "c0",
      of: (row) =>
        isOfLargest
          ? Math.max(0, size(row) - shown.reduce((all, name) => all + of(name)(row), 0))
          : others.reduce((all, name) => all + of(name)(row), 0),
    });
  return parts;
}
