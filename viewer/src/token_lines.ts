/** Lines from queries to the keys that they attend to. */

import { labelText } from "./elements.js";
import { exactText } from "./numbers.js";
import type { KeyWeight } from "./heads.js";

const LINE = 20;
const WIDTH = 420;
const TEXT = 130;
const NAMESPACE = "http://www.w3.org/2000/svg";

export interface QueryLines {
  readonly query: number;
  readonly keys: readonly KeyWeight[];
}

function draw(tag: string, attributes: Record<string, string | number>, ...content: (SVGElement | string)[]): SVGElement {
  const element = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...content);
  return element;
}

/** Smaller weights have no line: nobody would see it. */
const LEAST = 0.02;

/**
 * Draw queries at the left, keys at the right, and a line for each weight, as wide and as dark as it is large.
 *
 * @param lines The queries with their keys.
 * @param chosen The query whose lines stand out.
 */
export function linesOf(
  lines: readonly QueryLines[], queries: readonly string[], keys: readonly string[], chosen: number,
  onChoose: (query: number) => void,
): SVGElement {
  const shown = [...new Set(lines.flatMap((it) => it.keys.map((key) => key.key)))].sort((a, b) => a - b);
  const rowOfKey = new Map(shown.map((key, i) => [key, i]));
  const height = LINE * Math.max(lines.length, shown.length) + 8;
  const middle = (place: number) => LINE * (place + 0.5) + 4;
  const texts = (places: readonly number[], labels: readonly string[], x: number, anchor: string, marked: (place: number) => boolean) =>
    places.map((place, i) => draw("text", { x, y: middle(i) + 4, "text-anchor": anchor, class: marked(place) ? "chosen" : "" },
      cut(labelText(labels[place] ?? ""))));
  const attended = new Set(lines.find((it) => it.query === chosen)?.keys.map((it) => it.key));
  const curves = lines.flatMap(({ query, keys: seen }, i) => seen.filter((it) => it.weight >= LEAST).map(({ key, weight }) => {
    const [from, to] = [middle(i), middle(rowOfKey.get(key)!)];
    const [left, right] = [TEXT + 6, WIDTH - TEXT - 6];
    const strong = query === chosen;
    return draw("path", {
      d: `M${left} ${from}C${(left + right) / 2} ${from} ${(left + right) / 2} ${to} ${right} ${to}`,
      class: strong ? "line chosen" : "line", "stroke-width": (0.8 + 5 * weight).toFixed(2),
      "stroke-opacity": (strong ? 0.35 + 0.65 * weight : 0.15 + 0.45 * weight).toFixed(2),
    }, draw("title", {}, `${labelText(queries[query] ?? "")} → ${labelText(keys[key] ?? "")}: ${exactText(weight)}`));
  }));
  const left = texts(lines.map((it) => it.query), queries, TEXT, "end", (place) => place === chosen);
  left.forEach((text, i) => { text.addEventListener("click", () => { onChoose(lines[i]!.query); }); });
  const right = texts(shown, keys, WIDTH - TEXT, "start", (place) => attended.has(place));
  curves.sort((one, other) => Number(one.classList.contains("chosen")) - Number(other.classList.contains("chosen")));
  const count = curves.length;
  return draw("svg", {
    class: "lines", viewBox: `0 0 ${WIDTH} ${height}`, role: "img",
    "aria-label": `Lines from ${lines.length} queries to ${shown.length} keys, for ${count} weights of at least ${LEAST}. The table beside them has the numbers of the chosen query.`,
  }, ...curves, ...left, ...right);
}

function cut(text: string): string {
  const letters = [...text];
  return letters.length > 16 ? `${letters.slice(0, 15).join("")}…` : text;
}
