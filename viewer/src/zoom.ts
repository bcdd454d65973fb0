/** Parts of a map: rectangles of queries and keys, and how zooming and panning change them. */

import type { Cells } from "./heads.js";

/** Queries top … bottom − 1 and keys left … right − 1. */
export interface Rectangle {
  readonly top: number;
  readonly bottom: number;
  readonly left: number;
  readonly right: number;
}

export function wholeMap(queries: number, keys: number): Rectangle {
  return { top: 0, bottom: queries, left: 0, right: keys };
}

export function isWhole(part: Rectangle, bounds: Rectangle): boolean {
  return part.top === bounds.top && part.bottom === bounds.bottom && part.left === bounds.left && part.right === bounds.right;
}

function inside(start: number, length: number, from: number, to: number): [number, number] {
  const size = Math.max(1, Math.min(Math.round(length), to - from));
  const first = Math.max(from, Math.min(Math.round(start), to - size));
  return [first, first + size];
}

/** A part `factor` times as large, in which the place (query, key) stands where it stood, at least `least` tokens wide. */
export function zoomed(
  part: Rectangle, bounds: Rectangle, factor: number, at: readonly [number, number], least: readonly [number, number],
): Rectangle {
  const [height, width] = [part.bottom - part.top, part.right - part.left];
  const smallest = Math.min(1, Math.max(least[0] / height, least[1] / width));
  const by = factor < 1 ? Math.max(factor, smallest) : factor;
  const [top, bottom] = inside(at[0] - (at[0] - part.top) * by, height * by, bounds.top, bounds.bottom);
  const [left, right] = inside(at[1] - (at[1] - part.left) * by, width * by, bounds.left, bounds.right);
  return { top, bottom, left, right };
}

/** The part moved so far that it contains a place. */
export function movedTo(part: Rectangle, bounds: Rectangle, at: readonly [number, number]): Rectangle {
  const start = (place: number, from: number, to: number) => (place < from ? place : place >= to ? place - (to - from) + 1 : from);
  const [top, bottom] = inside(start(at[0], part.top, part.bottom), part.bottom - part.top, bounds.top, bounds.bottom);
  const [left, right] = inside(start(at[1], part.left, part.right), part.right - part.left, bounds.left, bounds.right);
  return { top, bottom, left, right };
}

/** The part around a place, as large as before. */
export function centeredOn(part: Rectangle, bounds: Rectangle, at: readonly [number, number]): Rectangle {
  const [height, width] = [part.bottom - part.top, part.right - part.left];
  const [top, bottom] = inside(at[0] - height / 2, height, bounds.top, bounds.bottom);
  const [left, right] = inside(at[1] - width / 2, width, bounds.left, bounds.right);
  return { top, bottom, left, right };
}

/** The smallest part of whole blocks that contains a part. */
export function snapped(part: Rectangle, cells: Cells, bounds: Rectangle): Rectangle {
  const down = (place: number, first: number, step: number) => first + Math.floor((place - first) / step) * step;
  const up = (place: number, first: number, step: number, last: number) => Math.min(last, first + Math.ceil((place - first) / step) * step);
  return {
    top: down(part.top, cells.top, cells.cellRows),
    bottom: up(part.bottom, cells.top, cells.cellRows, bounds.bottom),
    left: down(part.left, cells.left, cells.cellColumns),
    right: up(part.right, cells.left, cells.cellColumns, bounds.right),
  };
}

/** Blocks along a side of a part, below which smaller ones are wanted. */
const COARSE = 100;

/** Whether the blocks of a map are too large for a part of it. */
export function needsFiner(cells: Cells, part: Rectangle): boolean {
  const blocks = Math.max((part.bottom - part.top) / cells.cellRows, (part.right - part.left) / cells.cellColumns);
  return Math.max(cells.cellRows, cells.cellColumns) > 1 && blocks < COARSE;
}

/** Whether cells cover a part. */
export function covers(cells: Cells, part: Rectangle): boolean {
  return cells.top <= part.top && cells.bottom >= part.bottom && cells.left <= part.left && cells.right >= part.right;
}

/** The row and column of the block that a weight is in. */
export function blockAt(cells: Cells, query: number, key: number): [number, number] {
  return [Math.floor((query - cells.top) / cells.cellRows), Math.floor((key - cells.left) / cells.cellColumns)];
}

/** The first and the last query or key of a block. */
export function spanOf(first: number, step: number, place: number, end: number): [number, number] {
  const start = first + place * step;
  return [start, Math.min(end, start + step) - 1];
}
