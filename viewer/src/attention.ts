/** A small attention whose parts can be changed, computed as nodes with rules, like a recorded run. */

import type { Attention, Axis, Node, Role, Rule, Run, Tensor } from "./data.js";
import { entry, indexOf, positionOf, sizeOf } from "./data.js";
import { kept } from "./dropout.js";

export interface Settings {
  /** (T, d_in), one row for each token. */
  readonly tokens: readonly (readonly number[])[];
  readonly labels: readonly string[];
  /** (heads · head size, d_in), as nn.Linear stores them. */
  readonly queryWeights: readonly (readonly number[])[];
  readonly keyWeights: readonly (readonly number[])[];
  readonly valueWeights: readonly (readonly number[])[];
  readonly heads: number;
  /** What the scores are divided by, for head size d. */
  readonly scale: "root" | "none" | "whole" | "all heads";
  readonly temperature: number;
  readonly mask: "causal" | "none" | "later" | "own" | "after softmax";
  /** (T, T) of the mask "own": 1 = the query may see the key. */
  readonly own: readonly (readonly number[])[];
  readonly softmaxOver: "keys" | "queries";
  readonly dropout: number;
  readonly seed: number;
  /** Whether heads are split by a view and a transpose, or by a view of the shape that is wanted. */
  readonly split: "transpose" | "view only";
  readonly merge: "transpose" | "view only";
}

/** The expressions that split and merge heads. */
export const SPLITS: Readonly<Record<Settings["split"], string>> = {
  transpose: "view(T, H, D).transpose(0, 1)",
  "view only": "view(H, T, D)",
};
export const MERGES: Readonly<Record<Settings["merge"], string>> = {
  transpose: "transpose(0, 1).reshape(T, H * D)",
  "view only": "reshape(T, H * D)",
};

const TORN = "Tokens are torn: the axis that is as long as there are tokens does not count them. Point at a number to see whose it is.";

/** What a split by `view` and `transpose`, or a merge back, does to (T, heads · d) numbers. */
function headsOf(tensor: Tensor, heads: number, how: Settings["split"]): Tensor {
  const [tokens, width] = tensor.shape as [number, number];
  const size = width / heads;
  const shape = [heads, tokens, size];
  return filled(shape, ([h, t, f]) =>
    how === "transpose" ? positionOf([tokens, width], [t!, h! * size + f!]) : positionOf(shape, [h!, t!, f!]));
}

function mergedOf(tensor: Tensor, how: Settings["merge"]): Tensor {
  const [heads, tokens, size] = tensor.shape as [number, number, number];
  const shape = [tokens, heads * size];
  return filled(shape, ([t, f]) =>
    how === "transpose"
      ? positionOf(tensor.shape, [Math.floor(f! / size), t!, f! % size])
      : positionOf(shape, [t!, f!]));
}

function filled(shape: readonly number[], value: (index: readonly number[]) => number): Tensor {
  return { shape, values: Float64Array.from({ length: sizeOf(shape) }, (_, i) => value(indexOf(shape, i))) };
}

function matrix(rows: readonly (readonly number[])[]): Tensor {
  return { shape: [rows.length, rows[0]!.length], values: Float64Array.from(rows.flat()) };
}

class Builder {
  readonly nodes: Node[] = [];

  add(name: string, tensor: Tensor, axes: readonly Axis[], role: Role | null, rule: Rule | null, line: string | null, kind: Node["kind"] = "step"): number {
    this.nodes.push({
      name, kind, operation: rule?.kind ?? "", shape: tensor.shape, tensor, axes, role, rule, line,
      module: "", about: "", source: "", notes: [], unused: false, shown: true,
    });
    return this.nodes.length - 1;
  }

  tensor(node: number): Tensor {
    return this.nodes[node]!.tensor!;
  }

  /** The product of two nodes, by the letters of their axes. */
  product(name: string, left: number, right: number, letters: readonly [string, string, string], axes: readonly Axis[], role: Role | null, line: string): number {
    const [ofLeft, ofRight, result] = letters;
    const [one, other] = [this.tensor(left), this.tensor(right)];
    const sizes = new Map([...[...ofLeft].map((it, i) => [it, one.shape[i]!] as const), ...[...ofRight].map((it, i) => [it, other.shape[i]!] as const)]);
    const inner = [...ofLeft].find((it) => !result.includes(it))!;
    const tensor = filled([...result].map((it) => sizes.get(it)!), (index) => {
      const at = new Map([...result].map((it, i) => [it, index[i]!]));
      let sum = 0;
      for (let k = 0; k < sizes.get(inner)!; k++) {
        at.set(inner, k);
        const place = (letters: string) => [...letters].map((it) => at.get(it)!);
        const [a, b] = [entry(one, place(ofLeft)), entry(other, place(ofRight))];
        sum += a * b;
      }
      return sum;
    });
    const rule: Rule = { kind: "product", left, right, bias: null, letters: { left: ofLeft, right: ofRight, result } };
    return this.add(name, tensor, axes, role, rule, line);
  }

  move(name: string, of: number, origin: Tensor, axes: readonly Axis[], role: Role, line: string, expression: string): number {
    const { values } = this.tensor(of);
    const tensor = filled(origin.shape, (index) => values[entry(origin, index)]!);
    const at = this.add(name, tensor, axes, role, { kind: "move", of, origin }, line);
    const source = `${name} = ${this.nodes[of]!.name}.${expression}`;
    this.nodes[at] = { ...this.nodes[at]!, source, notes: axes.includes("token") ? [] : [TORN] };
    return at;
  }
}

/** The divisor of the scores. */
export function divisorOf(settings: Settings): number {
  const size = settings.queryWeights.length / settings.heads;
  const scale = { root: Math.sqrt(size), none: 1, whole: size, "all heads": Math.sqrt(size * settings.heads) }[settings.scale];
  return scale * settings.temperature;
}

/** Whether a query may see a key. */
export function sees(settings: Settings, query: number, key: number): boolean {
  switch (settings.mask) {
    case "none":
      return true;
    case "later":
      return key > query;
    case "own":
      return settings.own[query]![key] !== 0;
    default:
      return key <= query;
  }
}

function maskOf(settings: Settings): Tensor {
  const T = settings.tokens.length;
  const kept = filled([T, T], ([i, j]) => Number(sees(settings, i!, j!)));
  return { shape: kept.shape, values: Uint8Array.from(kept.values) };
}

export function attend(settings: Settings): Run {
  const build = new Builder();
  const { heads } = settings;
  const line = (name: string) => `code-${name}`;
  const x = build.add("x", matrix(settings.tokens), ["token", "feature"], "tokens", null, null, "input");

  const projected = (name: "queries" | "keys" | "values", weights: string, role: Role, numbers: readonly (readonly number[])[]) => {
    const W = build.add(weights, matrix(numbers), ["feature", "feature"], role, null, null, "parameter");
    const flat = build.product(name, x, W, ["ik", "jk", "ij"], ["token", "feature"], name, line(name));
    if (heads === 1) return flat;
    const shape = build.tensor(flat);
    const origin = headsOf(shape, heads, settings.split);
    const axes: Axis[] = settings.split === "transpose" ? ["head", "token", "feature"] : ["head", "", "feature"];
    return build.move(`${name}_by_head`, flat, origin, axes, "split", line(`${name}_by_head`), SPLITS[settings.split]);
  };
  const queries = projected("queries", "W_query", "query weights", settings.queryWeights);
  const keys = projected("keys", "W_key", "key weights", settings.keyWeights);
  const values = projected("values", "W_value", "value weights", settings.valueWeights);

  const [one, two]: [Axis[], string] = heads === 1 ? [[], ""] : [["head"], "H"];
  const map: Axis[] = [...one, "token", "key"];
  const scores = build.product("scores", queries, keys, [`${two}ik`, `${two}jk`, `${two}ij`], map, "scores", line("scores"));
  const divisor = divisorOf(settings);
  const scaledTensor = filled(build.tensor(scores).shape, (index) => entry(build.tensor(scores), index) / divisor);
  const scaled = build.add("scaled_scores", scaledTensor, map, "scaled", { kind: "scale", of: scores, by: divisor, divides: true }, line("scaled_scores"));

  const after = settings.mask === "after softmax";
  const mask = settings.mask === "none"
    ? null
    : build.add("mask", maskOf(settings), ["token", "key"], "mask", null, line("mask"));
  const masked = mask === null || after ? null : addMasked(build, "masked_scores", scaled, mask, -Infinity, map, "masked", line("masked_scores"));
  const weights = addSoftmax(build, masked ?? scaled, settings.softmaxOver, map, line("weights"));
  const keptWeights = mask !== null && after ? addMasked(build, "kept_weights", weights, mask, 0, map, null, line("kept_weights")) : weights;

  const survives = (index: readonly number[]) => {
    const [h, i, j] = index.length === 3 ? index : [0, ...index];
    return kept(settings.seed, settings.dropout, 0, h!, i!, j!);
  };
  const dropped = settings.dropout === 0 ? null : build.add(
    "dropped_weights",
    filled(build.tensor(keptWeights).shape, (index) => survives(index) ? entry(build.tensor(keptWeights), index) / (1 - settings.dropout) : 0),
    map, "dropped", { kind: "dropout", of: keptWeights, p: settings.dropout }, line("dropped_weights"));
  const used = dropped ?? keptWeights;
  const axes: Axis[] = [...one, "token", "feature"];
  const context = build.product(heads === 1 ? "context" : "context_by_head", used, values, [`${two}ik`, `${two}kj`, `${two}ij`], axes, "context", line("context_by_head"));
  if (heads > 1) {
    const origin = mergedOf(build.tensor(context), settings.merge);
    build.move("context", context, origin, settings.merge === "transpose" ? ["token", "feature"] : ["", "feature"], "merged", line("context"), MERGES[settings.merge]);
  }
  const attention: Attention = {
    title: "", queries, keys, values, scores, scaled, mask, masked, weights,
    dropped: dropped ?? (keptWeights === weights ? null : keptWeights), context,
  };
  return { title: "What if?", labels: settings.labels, nodes: build.nodes, attentions: [attention] };
}

function addMasked(build: Builder, name: string, of: number, mask: number, fill: number, axes: readonly Axis[], role: Role | null, line: string): number {
  const [source, keeps] = [build.tensor(of), build.tensor(mask)];
  const tensor = filled(source.shape, (index) => entry(keeps, index.slice(-2)) === 0 ? fill : entry(source, index));
  return build.add(name, tensor, axes, role, { kind: "mask", of, mask, fill, keeps: true }, line);
}

function addSoftmax(build: Builder, of: number, over: Settings["softmaxOver"], axes: readonly Axis[], line: string): number {
  const source = build.tensor(of);
  const axis = source.shape.length - (over === "keys" ? 1 : 2);
  const length = source.shape[axis]!;
  const tensor = filled(source.shape, (index) => {
    const row = Array.from({ length }, (_, k) => entry(source, index.map((at, i) => (i === axis ? k : at))));
    const largest = Math.max(...row);
    const total = row.reduce((sum, value) => sum + Math.exp(value - largest), 0);
    return Math.exp(entry(source, index) - largest) / total;
  });
  return build.add("weights", tensor, axes, "weights", { kind: "softmax", of, axis }, line);
}

/** What an attention returns: the last node. */
export function outputOf(run: Run): Tensor {
  return run.nodes.at(-1)!.tensor!;
}
