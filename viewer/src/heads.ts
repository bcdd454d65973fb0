/** The heads of a page: what its data holds, and how a head's numbers are read from it. */

import { sizeOf, type Tensor } from "./data.js";

/** An array within the inflated bytes of a head. Rounded numbers are multiples of `scale`, or of their squares. */
export interface PackedArray {
  readonly dtype: "f4" | "u2" | "u1" | "i4";
  readonly shape: readonly number[];
  readonly start: number;
  readonly scale?: number;
  readonly squared?: boolean;
  /** How many queries and keys a block of a map has. */
  readonly cell?: readonly [number, number];
  /** How many tokens share a number. */
  readonly block?: number;
}

export interface PackedHead {
  readonly at: number;
  readonly bytes: number;
  readonly arrays: Readonly<Record<string, PackedArray>>;
}

export interface Layer {
  /** Its place among all attentions that ran, which the page's server asks for. */
  readonly place: number;
  readonly name: string;
  readonly short: string;
  readonly queries: number;
  readonly keys: number;
  /** A small map of each head: levels of color from 0 to 255. */
  readonly overview: Tensor | null;
  readonly heads: readonly PackedHead[];
}

export interface Statistic {
  readonly name: string;
  readonly about: string;
  /** The numbers of each layer's heads. */
  readonly values: readonly (readonly (number | null)[])[];
}

export interface Model {
  readonly title: string;
  readonly layers: readonly Layer[];
  readonly statistics: readonly Statistic[];
}

export interface HeadsContent {
  readonly kind: "attention";
  /** The tokens; in cross-attention, those of the queries. */
  readonly labels: readonly string[];
  /** The tokens of the keys in cross-attention; null where queries and keys are of one text. */
  readonly keyLabels: readonly string[] | null;
  /** One model, or two that are compared. */
  readonly models: readonly Model[];
  readonly distances: Statistic | null;
  readonly notes: readonly string[];
  /** Where the page's server answers requests for tiles; null without one. */
  readonly tiles: string | null;
}

/** The place of a head: its layer, and its number in it. */
export interface Place {
  readonly layer: number;
  readonly head: number;
}

/** A part of a map in blocks of the same size, except for the last row and column, which may have fewer weights. */
export interface Cells {
  readonly top: number;
  readonly left: number;
  readonly bottom: number;
  readonly right: number;
  readonly cellRows: number;
  readonly cellColumns: number;
  readonly rows: number;
  readonly columns: number;
  readonly values: ArrayLike<number>;
}

/** The mean and the maximum of blocks of weights; they are the same where each block is one weight. */
export interface Blocks {
  readonly mean: Cells;
  readonly largest: Cells;
}

/** Numbers of tokens, of which neighbors may share one. */
export interface TokenNumbers {
  readonly values: ArrayLike<number>;
  readonly block: number;
}

export interface TopKeys {
  readonly count: number;
  readonly keys: ArrayLike<number>;
  readonly weights: ArrayLike<number>;
}

export interface HeadData {
  readonly queries: number;
  readonly keys: number;
  readonly blocks: Blocks | null;
  readonly tokens: Readonly<Record<string, TokenNumbers>>;
  readonly top: TopKeys | null;
  /** Whether the map has all weights, and none is rounded. */
  readonly exact: boolean;
}

export function isSingle(cells: Cells): boolean {
  return cells.cellRows === 1 && cells.cellColumns === 1;
}

const ARRAYS = { f4: Float32Array, u2: Uint16Array, u1: Uint8Array, i4: Int32Array } as const;

export function numbersOf(array: PackedArray, bytes: ArrayBuffer): ArrayLike<number> {
  const stored = new ARRAYS[array.dtype](bytes, array.start, sizeOf(array.shape));
  const { scale } = array;
  if (scale === undefined) return stored;
  return Float32Array.from(stored, array.squared === true ? (it) => it * it * scale : (it) => it * scale);
}

export async function inflated(bytes: ArrayBuffer, head: PackedHead): Promise<ArrayBuffer> {
  const compressed = new Blob([new Uint8Array(bytes, head.at, head.bytes)]);
  return await new Response(compressed.stream().pipeThrough(new DecompressionStream("deflate"))).arrayBuffer();
}

export async function readHead(layer: Layer, head: PackedHead, bytes: ArrayBuffer): Promise<HeadData> {
  const whole = await inflated(bytes, head);
  const { weights, mean, largest, top_weights: topWeights, top_keys: topKeys, ...rest } = head.arrays;
  const { queries, keys } = layer;
  const cellsOf = (array: PackedArray, cell: readonly [number, number]): Cells => ({
    top: 0, left: 0, bottom: queries, right: keys, cellRows: cell[0], cellColumns: cell[1],
    rows: array.shape[0]!, columns: array.shape[1]!, values: numbersOf(array, whole),
  });
  let blocks: Blocks | null = null;
  if (weights !== undefined) {
    const cells = cellsOf(weights, [1, 1]);
    blocks = { mean: cells, largest: cells };
  } else if (mean !== undefined && largest !== undefined) {
    blocks = { mean: cellsOf(mean, mean.cell!), largest: cellsOf(largest, mean.cell!) };
  }
  return {
    queries,
    keys,
    blocks,
    tokens: Object.fromEntries(Object.entries(rest).map(([name, array]) =>
      [name, { values: numbersOf(array, whole), block: array.block ?? 1 }])),
    top: topWeights === undefined || topKeys === undefined ? null : {
      count: topKeys.shape[1]!, keys: numbersOf(topKeys, whole), weights: numbersOf(topWeights, whole),
    },
    exact: weights?.dtype === "f4",
  };
}

export interface KeyWeight {
  readonly key: number;
  readonly weight: number;
}

/** The largest of some weights, in descending order; of equal ones, the earlier key comes first. */
export function largestOfRow(weights: ArrayLike<number>, count: number): KeyWeight[] {
  return Array.from(weights, (weight, key) => ({ key, weight }))
    .filter((it) => it.weight > 0)
    .sort((one, other) => other.weight - one.weight || one.key - other.key)
    .slice(0, count);
}

/** The weights of a query on all keys; null if the page has blocks only. */
export function rowOf(data: HeadData, query: number): ArrayLike<number> | null {
  const cells = data.blocks?.mean;
  if (cells === undefined || !isSingle(cells)) return null;
  return Array.from({ length: cells.columns }, (_, j) => cells.values[query * cells.columns + j]!);
}

/** The keys with the largest weights of a query; null if the page does not know them. */
export function topKeysOf(data: HeadData, query: number, count: number): KeyWeight[] | null {
  const { top } = data;
  if (top !== null) {
    const places = Array.from({ length: Math.min(count, top.count) }, (_, i) => query * top.count + i);
    return places.map((i) => ({ key: top.keys[i]!, weight: top.weights[i]! })).filter((it) => it.key >= 0);
  }
  const row = rowOf(data, query);
  return row === null ? null : largestOfRow(row, count);
}

/** The differences of two models' blocks; null if their blocks are not the same. */
export function differenceOf(one: Cells, other: Cells): Cells | null {
  if (one.cellRows !== other.cellRows || one.cellColumns !== other.cellColumns) return null;
  return { ...one, values: Float32Array.from(one.values, (value, i) => value - other.values[i]!) };
}

const ROBUST = 0.99;

/**
 * The value of the strongest color. Where each cell is one weight, it is the largest. Of blocks, a few of which are far
 * larger than all others, it is the 99th percentile of those that are not 0.
 */
export function colorLimit(values: ArrayLike<number>, single: boolean): number {
  const sizes: number[] = [];
  let largest = 0;
  for (let i = 0; i < values.length; i++) {
    const size = Math.abs(values[i]!);
    if (size > 0 && size < Infinity) sizes.push(size);
    if (size > largest && size < Infinity) largest = size;
  }
  if (single || sizes.length === 0) return largest;
  const sorted = Float64Array.from(sizes).sort();
  return sorted[Math.ceil(ROBUST * (sorted.length - 1))]!;
}

/** The values of the blocks that a part of the map has. */
export function valuesWithin(cells: Cells, part: { top: number; bottom: number; left: number; right: number }): number[] {
  const [top, bottom] = [part.top - cells.top, part.bottom - cells.top].map((it) => it / cells.cellRows) as [number, number];
  const [left, right] = [part.left - cells.left, part.right - cells.left].map((it) => it / cells.cellColumns) as [number, number];
  const values: number[] = [];
  for (let i = Math.floor(top); i < bottom; i++) {
    for (let j = Math.floor(left); j < right; j++) values.push(cells.values[i * cells.columns + j]!);
  }
  return values;
}

/** The places of all heads of some layers, in the order of a statistic. */
export function sortedHeads(model: Model, statistic: Statistic | null, descending: boolean, layer: number | null): Place[] {
  const places = model.layers.flatMap((it, at) =>
    layer === null || layer === at ? it.heads.map((_, head) => ({ layer: at, head })) : []);
  if (statistic === null) return places;
  const value = (place: Place) => statistic.values[place.layer]![place.head]!;
  return places
    .map((place, order) => ({ place, order, value: value(place) }))
    .sort((one, other) => compared(one.value, other.value, descending) || one.order - other.order)
    .map((it) => it.place);
}

/** Heads without a number come last. */
function compared(one: number | null, other: number | null, descending: boolean): number {
  if (one === null || other === null) return Number(one === null) - Number(other === null);
  return descending ? other - one : one - other;
}

/** The places of the tokens that contain a text, in any case of letters. */
export function found(labels: readonly string[], text: string): number[] {
  const wanted = text.toLowerCase();
  if (wanted === "") return [];
  return labels.flatMap((label, i) => (label.toLowerCase().includes(wanted) ? [i] : []));
}
