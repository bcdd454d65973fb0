/** What one query attends to in one head: its keys with the largest weights, in numbers and as lines. */

import { make } from "./elements.js";
import { largestOfRow, topKeysOf, type HeadData, type KeyWeight } from "./heads.js";
import { bdi } from "./heatmap.js";
import type { ShownHead } from "./map_panel.js";
import { exactText, threeDigits } from "./numbers.js";
import { linesOf, type QueryLines } from "./token_lines.js";

const LISTED = 8;
/** Queries up to which each has its lines; of longer texts, only those near the chosen one. */
const ALL_LINES = 40;
const NEAR = 8;

/** The numbers of a query, and of a token as a key, by their names in the data. */
export const OF_QUERIES: Readonly<Record<string, string>> = {
  entropy: "entropy", largest_weight: "largest weight", mean_distance: "mean distance",
};
export const RECEIVED = "received_mass";

/**
 * @param shown The head.
 * @param head Its numbers in one model.
 * @param query The chosen query.
 * @param row All weights of the query, if the server has sent them.
 * @param onChoose Receives a query that the reader chooses among the lines.
 */
export function queryRow(
  shown: ShownHead, head: HeadData, query: number, row: ArrayLike<number> | null, onChoose: (query: number) => void,
): HTMLElement {
  const keysOf = (it: number) => (it === query && row !== null ? largestOfRow(row, LISTED) : topKeysOf(head, it, LISTED));
  const top = keysOf(query);
  const table = top === null
    ? make("p", { class: "soft" }, "This page holds blocks of weights, which name no single keys. ",
      make("code", {}, "heedful show --model … --serve"), " finds them.")
    : tableOf(top, shown.keys);
  return make("div", { class: "row" }, make("dl", { class: "facts" }, ...facts(head, query, shown.same)),
    make("div", { class: "pair" }, table, lines(shown, query, keysOf, onChoose)));
}

function facts(head: HeadData, query: number, same: boolean): HTMLElement[] {
  const names = same ? { ...OF_QUERIES, [RECEIVED]: "received mass" } : OF_QUERIES;
  return Object.entries(names).flatMap(([name, text]) => {
    const numbers = head.tokens[name];
    if (numbers === undefined) return [];
    const value = numbers.values[Math.floor(query / numbers.block)]!;
    const shown = numbers.block > 1 ? `about ${threeDigits(value)}` : exactText(value);
    return [make("div", {}, make("dt", {}, text), make("dd", {}, shown))];
  });
}

function tableOf(top: readonly KeyWeight[], texts: readonly string[]): HTMLElement {
  const rest = Math.max(0, 1 - top.reduce((total, it) => total + it.weight, 0));
  const bar = (weight: number) =>
    make("td", { class: "bar-cell" }, make("span", { class: "weight-bar", style: `width:${100 * Math.min(1, weight)}%` }));
  const titles = ["key", "place", "weight"].map((it) => make("th", { scope: "col" }, it));
  return make("div", { class: "terms" }, make("table", {},
    make("thead", {}, make("tr", {}, ...titles, make("td"))),
    make("tbody", {}, ...top.map(({ key, weight }) => make("tr", {},
      make("th", { scope: "row" }, bdi(texts[key] ?? "")), make("td", {}, String(key)), make("td", {}, exactText(weight)), bar(weight)))),
    make("tfoot", {}, make("tr", {},
      make("th", { scope: "row" }, "all others"), make("td"), make("td", {}, exactText(rest)), bar(rest)))));
}

function lines(
  shown: ShownHead, query: number, keysOf: (query: number) => KeyWeight[] | null, onChoose: (query: number) => void,
): Element | null {
  const { queries } = shown.layer;
  const [from, to] = queries <= ALL_LINES ? [0, queries] : [Math.max(0, query - NEAR), Math.min(queries, query + NEAR + 1)];
  const all: QueryLines[] = Array.from({ length: to - from }, (_, i) => ({ query: from + i, keys: keysOf(from + i) ?? [] }));
  return all.every((it) => it.keys.length === 0) ? null : linesOf(all, shown.queries, shown.keys, query, onChoose);
}
