// Bars of a chart that are stacked by a group: the largest names each by themselves, the others as one.

const SHOWN = 7;
/** The most names that are asked for by day or hour: more would be dear, and a chart shows the largest few alone. */
export const STACKED_AT_MOST = 60;

/** The parts of a chart without groups. */
export const plain = (measure) => [{ name: measure.title, class: "c1", of: measure.of }];

/**
 * The parts of a chart of `measure`, from sums by `group` and from sums by day (or hour) and `group`. `pick` is called with the name
 * of a chosen part.
 */
export function stacked(byGroup, byStepAndGroup, group, measure, pick = null) {
  const size = (row) => measure.of(row) ?? 0;
  const names = [...byGroup].sort((one, other) => size(other) - size(one)).map((row) => row[group]);
  const shown = names.slice(0, names.length > SHOWN + 1 ? SHOWN : SHOWN + 1);
  const amounts = new Map(byStepAndGroup.map((row) => [`${row.hour ?? row.day} ${row[group]}`, size(row)]));
  const of = (name) => (row) => amounts.get(`${row.hour ?? row.day} ${name}`) ?? 0;
  const parts = shown.map((name, place) => ({
    name: name || `no ${group}`,
    class: `c${place + 1}`,
    of: of(name),
    pick: name && pick ? () => pick(name) : null,
  }));
  const others = names.slice(shown.length);
  if (others.length)
    parts.push({
      name: `${others.length} others`,
      class: "c0",
      of: (row) => others.reduce((all, name) => all + of(name)(row), 0),
    });
  return parts;
}
