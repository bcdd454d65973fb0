/** What a page draws: runs of nodes, and the tensors in them. */

export interface Tensor {
  readonly shape: readonly number[];
  readonly values: ArrayLike<number>;
}

/** What an axis counts. A "key" is a token that is attended to; "" is unknown. */
export type Axis = "batch" | "head" | "token" | "key" | "feature" | "";

export type Role =
  | "tokens"
  | "queries"
  | "keys"
  | "values"
  | "query weights"
  | "key weights"
  | "value weights"
  | "output weights"
  | "split"
  | "scores"
  | "scaled"
  | "mask"
  | "masked"
  | "weights"
  | "dropped"
  | "context"
  | "merged"
  | "output";

/**
 * How an entry of a node follows from entries of other nodes, which are named by their positions in the run.
 *
 * A product's letters name the axes of its operands, as in einsum. A move's `origin` has, for each entry, the position
 * of the entry that it came from; it is null if the node's tensor is reduced.
 */
export type Rule =
  | {
      readonly kind: "product";
      readonly left: number;
      readonly right: number;
      readonly bias: number | null;
      readonly letters: { readonly left: string; readonly right: string; readonly result: string };
    }
  | { readonly kind: "scale"; readonly of: number; readonly by: number | string; readonly divides: boolean }
  | {
      readonly kind: "mask";
      readonly of: number;
      readonly mask: number;
      readonly fill: number | string;
      readonly keeps: boolean;
    }
  | { readonly kind: "softmax"; readonly of: number; readonly axis: number }
  | { readonly kind: "dropout"; readonly of: number; readonly p: number }
  | { readonly kind: "combine"; readonly terms: readonly number[]; readonly operator: "+" | "−" | "·" | "/" }
  | { readonly kind: "exp"; readonly of: number }
  | { readonly kind: "reduce"; readonly of: number; readonly axis: number; readonly operator: "sum" | "max" }
  | { readonly kind: "move"; readonly of: number; readonly origin: Tensor | null };

export interface Node {
  readonly name: string;
  readonly kind: "step" | "input" | "parameter" | "buffer" | "attribute" | "constant";
  readonly operation: string;
  /** The shape of the recorded value, which is larger than that of `tensor` if that is reduced. */
  readonly shape: readonly number[];
  readonly tensor: Tensor | null;
  readonly axes: readonly Axis[];
  readonly role: Role | null;
  readonly rule: Rule | null;
  /** The identifier of the line of code that made it, in the listings of its run; null if none is shown. */
  readonly line: string | null;
  readonly module: string;
  /** What it is, for a node without a role. */
  readonly about: string;
  /** The statement that made it; "" if it is not known, or too long to stand for a formula. */
  readonly source: string;
  /** Sentences about what is shown, such as how a large value was reduced. */
  readonly notes: readonly string[];
  readonly unused: boolean;
  /** Whether the node has a card of its own. */
  readonly shown: boolean;
}

/** The positions of an attention's nodes in its run; null where it has none. */
export interface Attention {
  readonly title: string;
  readonly queries: number;
  readonly keys: number;
  readonly values: number | null;
  readonly scores: number;
  readonly scaled: number | null;
  readonly mask: number | null;
  readonly masked: number | null;
  readonly weights: number;
  readonly dropped: number | null;
  readonly context: number | null;
}

export interface Run {
  readonly title: string;
  /** The labels of the tokens. */
  readonly labels: readonly string[];
  readonly nodes: readonly Node[];
  readonly attentions: readonly Attention[];
}

/** A number of JSON, which has no infinities and no NaN: those are written as text. */
export function numberOf(written: number | string): number {
  return typeof written === "number" ? written : Number(written);
}

export function sizeOf(shape: readonly number[]): number {
  return shape.reduce((size, length) => size * length, 1);
}

/** The number of entries between neighbors along each axis. */
export function stridesOf(shape: readonly number[]): number[] {
  const strides = shape.map(() => 1);
  for (let axis = shape.length - 2; axis >= 0; axis--) strides[axis] = strides[axis + 1]! * shape[axis + 1]!;
  return strides;
}

export function positionOf(shape: readonly number[], index: readonly number[]): number {
  const strides = stridesOf(shape);
  return index.reduce((position, at, axis) => position + at * strides[axis]!, 0);
}

export function indexOf(shape: readonly number[], position: number): number[] {
  return stridesOf(shape).map((stride, axis) => Math.floor(position / stride) % shape[axis]!);
}

/** The index in a tensor that is broadcast: axes are aligned at the end, and an axis of size 1 has one entry for all. */
export function broadcastIndex(shape: readonly number[], index: readonly number[]): number[] {
  const aligned = index.slice(index.length - shape.length);
  return shape.map((length, axis) => (length === 1 ? 0 : aligned[axis]!));
}

/** Whether a node's tensor has every entry of the recorded value. */
export function isWholeValue(node: Node): boolean {
  return node.tensor !== null && node.tensor.shape.join() === node.shape.join();
}

export function entry(tensor: Tensor, index: readonly number[]): number {
  return tensor.values[positionOf(tensor.shape, index)]!;
}

export function broadcastEntry(tensor: Tensor, index: readonly number[]): number {
  return entry(tensor, broadcastIndex(tensor.shape, index));
}

const ARRAYS = { f4: Float32Array, f8: Float64Array, i4: Int32Array, u1: Uint8Array } as const;

/** An array as a page contains it: the bytes of all arrays are one text in base64, and each says where its own are. */
export interface PackedTensor {
  readonly dtype: keyof typeof ARRAYS;
  readonly shape: readonly number[];
  readonly offset: number;
}

export function bytesOf(base64: string): ArrayBuffer {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes.buffer;
}

function isPacked(value: unknown): value is PackedTensor {
  return typeof value === "object" && value !== null && "dtype" in value && "offset" in value;
}

/** Replace every packed array within a JSON value by its tensor. */
export function unpacked(value: unknown, bytes: ArrayBuffer): unknown {
  if (Array.isArray(value)) return value.map((part) => unpacked(part, bytes));
  if (isPacked(value)) {
    const values = new ARRAYS[value.dtype](bytes, value.offset, sizeOf(value.shape));
    return { shape: value.shape, values } satisfies Tensor;
  }
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, unpacked(part, bytes)]));
}
