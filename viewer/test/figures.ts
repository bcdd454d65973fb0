/** The figures printed in the documents that the textbook follows (tests/data/figures.json). */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import type { Settings } from "../src/attention.js";
import type { Tensor } from "../src/data.js";
import { RIGHT } from "../src/example.js";

type Numbers = number | string | readonly Numbers[];

interface Figures {
  readonly inputs: Readonly<Record<string, { readonly values: readonly (readonly number[])[] }>>;
  readonly figures: readonly { readonly id: string; readonly expected: Numbers; readonly tolerance: number }[];
}

export const FIGURES = JSON.parse(readFileSync("../tests/data/figures.json", "utf8")) as Figures;
export const EXPECTED = JSON.parse(readFileSync("test/expected.json", "utf8")) as {
  readonly linear: Readonly<Record<"query" | "key" | "value", readonly (readonly number[])[]>>;
  readonly settings: readonly { readonly change: Partial<Settings>; readonly output: Numbers }[];
  readonly kept: readonly { readonly seed: number; readonly p: number; readonly kept: readonly boolean[] }[];
};

export function flat(numbers: Numbers): number[] {
  if (typeof numbers === "number") return [numbers];
  if (typeof numbers === "string") return [{ "-inf": -Infinity, inf: Infinity }[numbers] ?? NaN];
  return numbers.flatMap(flat);
}

export function assertClose(actual: ArrayLike<number>, expected: Numbers, tolerance: number): void {
  const wanted = flat(expected);
  assert.equal(actual.length, wanted.length);
  wanted.forEach((value, i) => {
    const close = Object.is(actual[i], value) || Math.abs(actual[i]! - value) <= tolerance;
    assert.ok(close, `entry ${i}: ${actual[i]!}, expected ${value}`);
  });
}

export function assertFigure(id: string, actual: Tensor): void {
  const figure = FIGURES.figures.find((it) => it.id === id);
  assert.ok(figure, id);
  assertClose(actual.values, figure.expected, figure.tolerance);
}

/** One head with the projections of an input of the documents. */
export function oneHead(input: string, weights: { query: readonly (readonly number[])[]; key: readonly (readonly number[])[]; value: readonly (readonly number[])[] }, change: Partial<Settings> = {}): Settings {
  const tokens = FIGURES.inputs[input]!.values;
  return {
    ...RIGHT,
    tokens,
    labels: tokens.map((_, i) => String(i)),
    queryWeights: weights.query,
    keyWeights: weights.key,
    valueWeights: weights.value,
    heads: 1,
    mask: "none",
    ...change,
  };
}

export function transposed(rows: readonly (readonly number[])[]): number[][] {
  return rows[0]!.map((_, j) => rows.map((row) => row[j]!));
}
