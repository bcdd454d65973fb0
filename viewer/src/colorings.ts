/** What the text can be colored by: the weights of the chosen query, or a number of each token. */

import { colorLimit, rowOf, type HeadData } from "./heads.js";
import { OF_QUERIES, RECEIVED } from "./query_row.js";

export interface Coloring {
  readonly name: string;
  /** Whether the tokens are colored as keys, not as queries. */
  readonly ofKeys: boolean;
  readonly value: (token: number) => number;
  /** The value of the strongest color. */
  readonly limit: number;
}

/** The colorings of one or two models' heads; `row` has the weights of the query if the server has sent them. */
export function coloringsOf(heads: readonly HeadData[], query: number, row: ArrayLike<number> | null): Coloring[] {
  return heads.flatMap((head, i) => {
    const whose = heads.length === 1 ? "" : i === 0 ? " (the first)" : " (the second)";
    const weights = ofRow(head, query, row);
    const numbers = [...Object.entries(OF_QUERIES), [RECEIVED, "received mass"] as const].flatMap(([name, text]) => {
      const found = head.tokens[name];
      if (found === undefined) return [];
      const { values, block } = found;
      return [{
        name: `their ${text}${whose}`, ofKeys: name === RECEIVED,
        value: (token: number) => values[Math.floor(token / block)]!, limit: colorLimit(values, name !== RECEIVED),
      }];
    });
    return weights === null ? numbers : [{ ...weights, name: `${weights.name}${whose}` }, ...numbers];
  });
}

function ofRow(head: HeadData, query: number, fetched: ArrayLike<number> | null): Coloring | null {
  const row = fetched ?? rowOf(head, query);
  if (row !== null) {
    return { name: "the weight that the query gives them", ofKeys: true, value: (token) => row[token]!, limit: colorLimit(row, true) };
  }
  if (head.blocks === null) return null;
  const { cellRows, cellColumns, columns, values } = head.blocks.mean;
  const first = Math.floor(query / cellRows) * columns;
  const blocks = Array.from({ length: columns }, (_, j) => values[first + j]!);
  return {
    name: "the mean weight of their block", ofKeys: true,
    value: (token) => blocks[Math.floor(token / cellColumns)]!, limit: colorLimit(blocks, false),
  };
}
