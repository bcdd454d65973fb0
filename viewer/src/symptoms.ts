/** What shows that an attention is right or wrong: measured, not deduced from its settings. */

import { attend, outputOf, type Settings } from "./attention.js";
import { entry, sizeOf, type Run, type Tensor } from "./data.js";

export interface Outcome {
  readonly run: Run;
  /** The smallest and the largest sum of the weights of a query, after dropout. */
  readonly sums: readonly [number, number];
  /** (T, T): by how much the output of token i changes if token j does. */
  readonly reach: Tensor;
  /** Pairs of an output and a later token on which it depends. */
  readonly leaks: number;
  /** exp(entropy) of the weights, averaged over queries and heads: how many keys share the weight. */
  readonly keysInUse: number;
  readonly largestWeight: number;
  /** Outputs that are NaN. */
  readonly undefinedOutputs: number;
  /** The largest difference from the output of the right attention with the same mask. */
  readonly error: number;
  /** Rows of the heads' queries that hold numbers of several tokens, or of another one than their own. */
  readonly tornRows: number;
}

const PUSH = 0.25;

export function outcomeOf(settings: Settings): Outcome {
  const run = attend(settings);
  const output = outputOf(run);
  const attention = run.attentions[0]!;
  const weights = run.nodes[attention.weights]!.tensor!;
  const used = run.nodes[attention.dropped ?? attention.weights]!.tensor!;
  const sums = rowsOf(used).map((row) => row.reduce((sum, value) => sum + value, 0));
  const reach = reachOf(settings, output);
  const T = settings.tokens.length;
  let leaks = 0;
  for (let i = 0; i < T; i++) for (let j = i + 1; j < T; j++) if (!(entry(reach, [i, j]) <= 1e-9)) leaks++;
  const right = outputOf(attend(rightened(settings)));
  return {
    run,
    sums: [Math.min(...sums), Math.max(...sums)],
    reach,
    leaks,
    keysInUse: mean(rowsOf(weights).map(keysInUse)),
    largestWeight: Math.max(...Array.from(weights.values)),
    undefinedOutputs: Array.from(output.values).filter(Number.isNaN).length,
    error: differenceOf(output, right),
    tornRows: tornRowsOf(run),
  };
}

/** The same attention without its mistakes; the mask "own" and the temperature are choices, not mistakes. */
export function rightened(settings: Settings): Settings {
  return {
    ...settings,
    scale: "root",
    mask: settings.mask === "own" ? "own" : "causal",
    softmaxOver: "keys",
    dropout: 0,
    split: "transpose",
    merge: "transpose",
  };
}

function rowsOf(tensor: Tensor): number[][] {
  const length = tensor.shape.at(-1)!;
  const rows = sizeOf(tensor.shape) / length;
  return Array.from({ length: rows }, (_, i) => Array.from(tensor.values).slice(i * length, (i + 1) * length));
}

function keysInUse(row: readonly number[]): number {
  const total = row.reduce((sum, value) => sum + value, 0);
  const entropy = row.reduce((sum, value) => (value > 0 ? sum - (value / total) * Math.log(value / total) : sum), 0);
  return Math.exp(entropy);
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

function reachOf(settings: Settings, output: Tensor): Tensor {
  const T = settings.tokens.length;
  const width = output.shape[1]!;
  const changed = settings.tokens.map((_, j) => {
    const tokens = settings.tokens.map((token, t) => (t === j ? token.map((value) => value + PUSH) : token));
    return outputOf(attend({ ...settings, tokens }));
  });
  const values = Array.from({ length: T * T }, (_, at) => {
    const [i, j] = [Math.floor(at / T), at % T];
    let largest = 0;
    for (let f = 0; f < width; f++) {
      const difference = Math.abs(entry(changed[j]!, [i, f]) - entry(output, [i, f]));
      largest = Number.isNaN(difference) || Number.isNaN(largest) ? NaN : Math.max(largest, difference);
    }
    return largest;
  });
  return { shape: [T, T], values };
}

function differenceOf(one: Tensor, other: Tensor): number {
  let largest = 0;
  for (let i = 0; i < one.values.length; i++) {
    const difference = Math.abs(one.values[i]! - other.values[i]!);
    if (Number.isNaN(difference)) return NaN;
    largest = Math.max(largest, difference);
  }
  return largest;
}

function tornRowsOf(run: Run): number {
  const split = run.nodes.find((node) => node.role === "split");
  if (split?.rule?.kind !== "move") return 0;
  const origin = split.rule.origin!;
  const width = run.nodes[split.rule.of]!.shape[1]!;
  const [heads, T, size] = origin.shape as [number, number, number];
  let torn = 0;
  for (let h = 0; h < heads; h++) {
    for (let t = 0; t < T; t++) {
      const own = Array.from({ length: size }, (_, f) => Math.floor(entry(origin, [h, t, f]) / width) === t);
      if (!own.every((it) => it)) torn++;
    }
  }
  return torn;
}

/** How many keys share the weight, for several temperatures. */
export function sharpnessCurve(settings: Settings): { readonly x: number; readonly y: number; readonly series: string }[] {
  const temperatures = Array.from({ length: 25 }, (_, i) => 10 ** (-1 + i / 12));
  return temperatures.flatMap((temperature) => {
    const run = attend({ ...settings, temperature });
    const weights = run.nodes[run.attentions[0]!.weights]!.tensor!;
    const rows = rowsOf(weights);
    return Array.from({ length: settings.heads }, (_, head) => {
      const own = rows.slice((head * rows.length) / settings.heads, ((head + 1) * rows.length) / settings.heads);
      return { x: temperature, y: mean(own.map(keysInUse).filter(Number.isFinite)), series: `head ${head}` };
    });
  }).filter((it) => Number.isFinite(it.y));
}
