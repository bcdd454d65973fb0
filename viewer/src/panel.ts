/** Which entries of a tensor a map shows: rows and columns, and fixed places along all other axes. */

import { entry, positionOf, sizeOf, type Axis, type Node, type Tensor } from "./data.js";

/** The places along the axes that are not drawn, common to all maps of a view. */
export interface Places {
  readonly batch: number;
  readonly head: number;
}

export interface Panel {
  readonly tensor: Tensor;
  readonly rows: number;
  readonly columns: number;
  readonly rowAxis: Axis;
  readonly columnAxis: Axis;
  /** The index, within the tensor, of the entry in a row and a column. */
  readonly index: (row: number, column: number) => number[];
  readonly value: (row: number, column: number) => number;
  /** The row and column of an entry, or null if another panel shows it. */
  readonly cell: (index: readonly number[]) => readonly [number, number] | null;
}

export function panelOf(node: Node, places: Places): Panel | null {
  const { tensor, axes } = node;
  if (tensor === null || sizeOf(tensor.shape) === 0) return null;
  const columnsAt = columnAxis(axes);
  const rowsAt = rowAxis(axes, columnsAt);
  const fixed = tensor.shape.map((length, axis) => Math.min(placeOf(axes[axis] ?? "", places), length - 1));
  const index = (row: number, column: number) =>
    fixed.map((place, axis) => (axis === rowsAt ? row : axis === columnsAt ? column : place));
  return {
    tensor,
    rows: rowsAt < 0 ? 1 : tensor.shape[rowsAt]!,
    columns: columnsAt < 0 ? 1 : tensor.shape[columnsAt]!,
    rowAxis: axes[rowsAt] ?? "",
    columnAxis: axes[columnsAt] ?? "",
    index,
    value: (row, column) => entry(tensor, index(row, column)),
    cell: (at) => {
      const shown = index(at[rowsAt] ?? 0, at[columnsAt] ?? 0);
      return positionOf(tensor.shape, shown) === positionOf(tensor.shape, at)
        ? [at[rowsAt] ?? 0, at[columnsAt] ?? 0]
        : null;
    },
  };
}

function columnAxis(axes: readonly Axis[]): number {
  const key = axes.indexOf("key");
  return key >= 0 ? key : axes.length - 1;
}

/** The tokens are the rows; without tokens, the last axis that is not the columns'. */
function rowAxis(axes: readonly Axis[], columnsAt: number): number {
  const token = axes.indexOf("token");
  if (token >= 0 && token !== columnsAt) return token;
  return columnsAt === axes.length - 1 ? axes.length - 2 : axes.length - 1;
}

function placeOf(axis: Axis, places: Places): number {
  return axis === "batch" ? places.batch : axis === "head" ? places.head : 0;
}

const largest = new WeakMap<Tensor, number>();

/** The largest absolute value of a tensor among those that are finite, which all its maps share as their scale. */
export function largestOf(tensor: Tensor): number {
  const known = largest.get(tensor);
  if (known !== undefined) return known;
  let found = 0;
  for (let i = 0; i < tensor.values.length; i++) {
    const size = Math.abs(tensor.values[i]!);
    if (size > found && size < Infinity) found = size;
  }
  largest.set(tensor, found);
  return found;
}

export function isWhole(tensor: Tensor): boolean {
  return tensor.values instanceof Uint8Array || tensor.values instanceof Int32Array;
}

/** The labels of an axis: the tokens, or numbers. */
export function labelsOf(axis: Axis, length: number, tokens: readonly string[]): readonly string[] {
  if (length === 1 && tokens.length > 1) return [""];
  const counted = axis === "token" || axis === "key";
  if (counted && length === tokens.length) return tokens;
  // Of a map of means, a cell is named by its first token.
  if (counted && length < tokens.length) return Array.from({ length }, (_, i) => `${tokens[Math.ceil((i * tokens.length) / length)]!} …`);
  return Array.from({ length }, (_, i) => String(i));
}
