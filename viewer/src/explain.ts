/** How one entry of a node was made, in numbers. */

import { broadcastEntry, entry, indexOf, isWholeValue, numberOf, type Rule, type Run, type Tensor } from "./data.js";

/** A number that takes part in an explanation, and where it stands. */
export interface Operand {
  readonly node: number;
  readonly index: readonly number[];
  readonly value: number;
}

export type Explanation =
  | {
      readonly kind: "product";
      readonly terms: readonly { readonly left: Operand; readonly right: Operand; readonly product: number }[];
      readonly bias: Operand | null;
    }
  | { readonly kind: "scale"; readonly of: Operand; readonly by: number; readonly divides: boolean }
  | {
      readonly kind: "mask";
      readonly of: Operand;
      readonly mask: Operand;
      readonly kept: boolean;
      readonly fill: number;
    }
  | {
      readonly kind: "softmax";
      readonly entries: readonly { readonly of: Operand; readonly exponential: number }[];
      readonly at: number;
      readonly largest: number;
      readonly total: number;
    }
  | { readonly kind: "dropout"; readonly of: Operand; readonly p: number; readonly kept: boolean }
  | { readonly kind: "combine"; readonly terms: readonly Operand[]; readonly operator: "+" | "−" | "·" | "/" }
  | { readonly kind: "exp"; readonly of: Operand }
  | { readonly kind: "reduce"; readonly entries: readonly Operand[]; readonly operator: "sum" | "max" }
  | { readonly kind: "move"; readonly of: Operand };

/** Explain an entry; null if the node has no rule, or a tensor that the rule needs is not whole in the page. */
export function explain(run: Run, node: number, index: readonly number[]): Explanation | null {
  const { rule } = run.nodes[node]!;
  if (rule === null || ![node, ...partsOf(rule)].every((part) => isWholeValue(run.nodes[part]!))) return null;
  switch (rule.kind) {
    case "product":
      return product(run, rule, index);
    case "scale":
      return { kind: "scale", of: operand(run, rule.of, index), by: numberOf(rule.by), divides: rule.divides };
    case "mask": {
      const mask = broadcastOperand(run, rule.mask, index);
      const kept = (mask.value !== 0) === rule.keeps;
      return { kind: "mask", of: broadcastOperand(run, rule.of, index), mask, kept, fill: numberOf(rule.fill) };
    }
    case "softmax":
      return softmax(run, rule.of, rule.axis, index);
    case "dropout": {
      const kept = entry(run.nodes[node]!.tensor!, index) !== 0;
      return { kind: "dropout", of: operand(run, rule.of, index), p: rule.p, kept };
    }
    case "combine":
      return { ...rule, terms: rule.terms.map((term) => broadcastOperand(run, term, index)) };
    case "exp":
      return { kind: "exp", of: operand(run, rule.of, index) };
    case "reduce":
      return { kind: "reduce", entries: reduced(run, rule, index), operator: rule.operator };
    case "move": {
      const position = entry(rule.origin!, index);
      return { kind: "move", of: operand(run, rule.of, indexOf(run.nodes[rule.of]!.tensor!.shape, position)) };
    }
  }
}

/** The nodes that a rule reads. */
export function partsOf(rule: Rule): number[] {
  switch (rule.kind) {
    case "product":
      return [rule.left, rule.right, ...(rule.bias === null ? [] : [rule.bias])];
    case "mask":
      return [rule.of, rule.mask];
    case "combine":
      return [...rule.terms];
    default:
      return [rule.of];
  }
}

function operand(run: Run, node: number, index: readonly number[]): Operand {
  return { node, index, value: entry(run.nodes[node]!.tensor!, index) };
}

function broadcastOperand(run: Run, node: number, index: readonly number[]): Operand {
  const tensor = run.nodes[node]!.tensor!;
  const aligned = index.slice(index.length - tensor.shape.length).map((at, i) => (tensor.shape[i] === 1 ? 0 : at));
  return { node, index: aligned, value: broadcastEntry(tensor, index) };
}

function product(run: Run, rule: Rule & { kind: "product" }, index: readonly number[]): Explanation {
  const { letters } = rule;
  const at = new Map([...letters.result].map((letter, axis) => [letter, index[axis]!]));
  const left = run.nodes[rule.left]!.tensor!;
  const right = run.nodes[rule.right]!.tensor!;
  const inner = [...letters.left].find((letter) => !letters.result.includes(letter));
  const length = inner === undefined ? 1 : left.shape[letters.left.indexOf(inner)]!;
  const terms = Array.from({ length }, (_, k) => {
    if (inner !== undefined) at.set(inner, k);
    const one = operand(run, rule.left, lettersIndex(left, letters.left, at));
    const other = operand(run, rule.right, lettersIndex(right, letters.right, at));
    return { left: one, right: other, product: one.value * other.value };
  });
  const bias = rule.bias === null ? null : operand(run, rule.bias, [index.at(-1)!]);
  return { kind: "product", terms, bias };
}

function lettersIndex(tensor: Tensor, letters: string, at: ReadonlyMap<string, number>): number[] {
  return [...letters].map((letter, axis) => (tensor.shape[axis] === 1 ? 0 : at.get(letter)!));
}

/** The entries along an axis, which the result of a reduction may have kept or not. */
function reduced(run: Run, rule: Rule & { kind: "reduce" }, index: readonly number[]): Operand[] {
  const { shape } = run.nodes[rule.of]!.tensor!;
  const rest = index.length < shape.length ? [...index] : index.filter((_, axis) => axis !== rule.axis);
  return Array.from({ length: shape[rule.axis]! }, (_, k) =>
    operand(run, rule.of, [...rest.slice(0, rule.axis), k, ...rest.slice(rule.axis)]));
}

function softmax(run: Run, of: number, axis: number, index: readonly number[]): Explanation {
  const { shape } = run.nodes[of]!.tensor!;
  const operands = Array.from({ length: shape[axis]! }, (_, k) =>
    operand(run, of, index.map((at, i) => (i === axis ? k : at))),
  );
  const largest = Math.max(...operands.map((it) => it.value));
  const entries = operands.map((it) => ({ of: it, exponential: Math.exp(it.value - largest) }));
  const total = entries.reduce((sum, it) => sum + it.exponential, 0);
  return { kind: "softmax", entries, at: index[axis]!, largest, total };
}
