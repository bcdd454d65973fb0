/** A map of values: a table of numbers if there is room for them, and otherwise a picture on a canvas. */

import { classOf, colorOf, css, LEVELS, levelOf, onThemeChange, themeNow } from "./colors.js";
import { label, labelText, make } from "./elements.js";
import { cellText, exactText } from "./numbers.js";

/** The number of rows or columns up to which cells have room for numbers. */
export const TABLE_LIMIT = 16;

export interface Values {
  readonly rows: readonly string[];
  readonly columns: readonly string[];
  readonly value: (row: number, column: number) => number;
  /** The largest absolute value, which has the strongest color. */
  readonly largest: number;
  /** Whether all values are whole numbers by their type. */
  readonly whole: boolean;
}

export interface Matrix {
  readonly element: HTMLElement;
  /** Show other values, of the same sizes. */
  update(values: Values): void;
  /** Mark cells, and no others. */
  mark(cells: readonly (readonly [number, number])[]): void;
}

export type OnPoint = (row: number, column: number, chosen: boolean) => void;

export function matrixOf(caption: string, values: Values, onPoint: OnPoint): Matrix {
  const small = Math.max(values.rows.length, values.columns.length) <= TABLE_LIMIT;
  return small ? new TableMatrix(caption, values, onPoint) : new CanvasMatrix(caption, values, onPoint);
}

/** Moves of the arrow keys, as changes of row and column. */
const MOVES: Readonly<Record<string, readonly [number, number]>> = {
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
  Home: [0, -Infinity],
  End: [0, Infinity],
  PageUp: [-Infinity, 0],
  PageDown: [Infinity, 0],
};

/** The place that a key leads to; null for other keys. */
export function moved(key: string, at: readonly [number, number], rows: number, columns: number): [number, number] | null {
  const move = MOVES[key];
  if (move === undefined) return null;
  const inside = (place: number, length: number) => Math.max(0, Math.min(length - 1, place));
  return [inside(at[0] + move[0], rows), inside(at[1] + move[1], columns)];
}

class TableMatrix implements Matrix {
  readonly element: HTMLElement;
  private readonly cells: HTMLTableCellElement[][] = [];
  private at: [number, number] = [0, 0];

  constructor(caption: string, values: Values, onPoint: OnPoint) {
    const { rows, columns } = values;
    const wordy = rows.some((it) => it !== "");
    const head = make("tr", {}, ...(wordy ? [make("td", { class: "corner" })] : []));
    for (const column of columns) head.append(make("th", { scope: "col" }, label(column)));
    const body = make("tbody");
    rows.forEach((row, i) => {
      const line = make("tr", {}, ...(wordy ? [make("th", { scope: "row" }, label(row))] : []));
      this.cells.push(columns.map((_, j) => {
        const cell = make("td", { class: "cell", tabindex: -1, role: "gridcell" });
        cell.addEventListener("mouseenter", () => { onPoint(i, j, false); });
        cell.addEventListener("click", () => { onPoint(i, j, true); });
        cell.addEventListener("focus", () => {
          this.at = [i, j];
          this.rove();
          onPoint(i, j, false);
        });
        line.append(cell);
        return cell;
      }));
      body.append(line);
    });
    const table = make("table", { role: "grid", "aria-label": caption }, make("thead", {}, head), body);
    table.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        onPoint(this.at[0], this.at[1], true);
        return;
      }
      const next = moved(event.key, this.at, rows.length, columns.length);
      if (next === null) return;
      event.preventDefault();
      this.cells[next[0]]![next[1]]!.focus();
    });
    this.element = make("div", { class: "matrix" }, table);
    this.update(values);
    this.rove();
  }

  update(values: Values): void {
    this.cells.forEach((line, i) => {
      line.forEach((cell, j) => {
        const value = values.value(i, j);
        const marked = cell.classList.contains("marked");
        cell.className = `cell ${classOf(value, values.largest)}${marked ? " marked" : ""}`;
        cell.textContent = values.whole ? String(value) : cellText(value, values.largest);
        cell.title = exactText(value);
      });
    });
  }

  mark(cells: readonly (readonly [number, number])[]): void {
    for (const line of this.cells) for (const cell of line) cell.classList.remove("marked");
    for (const [row, column] of cells) this.cells[row]?.[column]?.classList.add("marked");
  }

  /** Let the Tab key reach one cell, from which the arrow keys reach the others. */
  private rove(): void {
    this.cells.forEach((line, i) => {
      line.forEach((cell, j) => { cell.tabIndex = i === this.at[0] && j === this.at[1] ? 0 : -1; });
    });
  }
}

const LARGEST_PICTURE = 480;

class CanvasMatrix implements Matrix {
  readonly element: HTMLElement;
  private readonly canvas: HTMLCanvasElement;
  /** One pixel for each cell. */
  private readonly painted = make("canvas");
  private readonly reading: HTMLElement;
  private readonly cellSize: number;
  private marked: readonly (readonly [number, number])[] = [];
  private at: [number, number] = [0, 0];

  constructor(private readonly caption: string, private values: Values, private readonly onPoint: OnPoint) {
    const { rows, columns } = values;
    const most = Math.max(rows.length, columns.length);
    this.cellSize = Math.max(2, Math.min(14, Math.floor(LARGEST_PICTURE / most)));
    this.canvas = make("canvas", { tabindex: 0, role: "img" });
    this.reading = make("p", { class: "reading" });
    this.element = make("div", { class: "matrix picture" }, this.canvas, this.reading);
    this.canvas.addEventListener("mousemove", (event) => { this.point(this.cellAt(event), false); });
    this.canvas.addEventListener("click", (event) => { this.point(this.cellAt(event), true); });
    this.canvas.addEventListener("focus", () => { this.point(this.at, false); });
    this.canvas.addEventListener("keydown", (event) => {
      const next = moved(event.key, this.at, rows.length, columns.length);
      if (next === null && event.key !== "Enter") return;
      event.preventDefault();
      this.point(next ?? this.at, next === null);
    });
    onThemeChange(() => { this.paint(); });
    this.update(values);
  }

  update(values: Values): void {
    this.values = values;
    const { rows, columns } = values;
    this.canvas.setAttribute("aria-label", `${this.caption}: a map of ${rows.length} × ${columns.length} values, ` +
      `up to ${cellText(values.largest, values.largest)} in size. The arrow keys read it cell by cell.`);
    this.paint();
  }

  mark(cells: readonly (readonly [number, number])[]): void {
    if (cells.length === 0 && this.marked.length === 0) return;
    this.marked = cells;
    this.drawMarked();
  }

  private point(cell: readonly [number, number], chosen: boolean): void {
    const [row, column] = (this.at = [...cell]);
    const { rows, columns, value } = this.values;
    this.reading.textContent = `${labelText(rows[row]!)}, ${labelText(columns[column]!)}: ${exactText(value(row, column))}`;
    this.onPoint(row, column, chosen);
  }

  private cellAt(event: MouseEvent): [number, number] {
    const box = this.canvas.getBoundingClientRect();
    const { rows, columns } = this.values;
    const place = (share: number, length: number) => Math.max(0, Math.min(length - 1, Math.floor(share * length)));
    return [
      place((event.clientY - box.top) / box.height, rows.length),
      place((event.clientX - box.left) / box.width, columns.length),
    ];
  }

  /** Paint all cells, which takes long, where they are kept for the next marks. */
  private paint(): void {
    const { rows, columns, value, largest } = this.values;
    const theme = themeNow();
    const colors = Array.from({ length: 2 * LEVELS + 1 }, (_, i) => css(colorOf(i - LEVELS, theme)));
    const special = theme === "dark" ? { hidden: "#3a4250", nan: "#8a6d1a" } : { hidden: "#d5d8dd", nan: "#ecd08a" };
    this.painted.width = columns.length;
    this.painted.height = rows.length;
    const context = this.painted.getContext("2d")!;
    for (let i = 0; i < rows.length; i++) {
      for (let j = 0; j < columns.length; j++) {
        const number = value(i, j);
        context.fillStyle = Number.isFinite(number)
          ? colors[levelOf(number, largest) + LEVELS]!
          : Number.isNaN(number) ? special.nan : special.hidden;
        context.fillRect(j, i, 1, 1);
      }
    }
    this.drawMarked();
  }

  private drawMarked(): void {
    const { rows, columns } = this.values;
    const density = Math.ceil(window.devicePixelRatio || 1);
    const size = this.cellSize * density;
    this.canvas.width = columns.length * size;
    this.canvas.height = rows.length * size;
    this.canvas.style.width = `${columns.length * this.cellSize}px`;
    const context = this.canvas.getContext("2d")!;
    context.imageSmoothingEnabled = false;
    context.drawImage(this.painted, 0, 0, this.canvas.width, this.canvas.height);
    context.strokeStyle = themeNow() === "dark" ? "#ffd76a" : "#b00060";
    context.lineWidth = 2 * density;
    if (this.marked.length <= rows.length + columns.length) {
      for (const [row, column] of this.marked) context.strokeRect(column * size, row * size, size, size);
    }
  }
}
