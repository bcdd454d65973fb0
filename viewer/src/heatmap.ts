/** A map of weights on a canvas, with tokens at both sides, in which the reader moves and zooms. */

import { colorOf, LEVELS, levelOf, onThemeChange, themeNow } from "./colors.js";
import { labelText, make } from "./elements.js";
import { isSingle, type Cells } from "./heads.js";
import { moved } from "./matrix.js";
import { cellText, exactText, threeDigits } from "./numbers.js";
import { blockAt, movedTo, spanOf, zoomed, type Rectangle } from "./zoom.js";

export interface Shown {
  readonly cells: Cells;
  /** The maxima of the same blocks; null for differences. */
  readonly largest: Cells | null;
  /** The part that is drawn, in whole blocks. */
  readonly part: Rectangle;
  readonly bounds: Rectangle;
  /** Whether the values are not rounded. */
  readonly exact: boolean;
  /** The value of the strongest color. */
  readonly limit: number;
  /** The smallest part that can be zoomed to. */
  readonly least: readonly [number, number];
  readonly queries: readonly string[];
  readonly keys: readonly string[];
}

export interface Listener {
  /** The reader points at a weight, or reaches it by the keyboard. */
  point(query: number, key: number): void;
  /** The reader chooses a weight. */
  choose(query: number, key: number): void;
  /** The reader zooms or moves to another part. */
  view(part: Rectangle): void;
}

const MOST_LABELS = 36;
const ZOOM = 2;
/** Columns from which a map is drawn smoothly, because the screen has fewer pixels for it. */
const SMOOTH = 400;
const DRAG = 5;

export class HeatMap {
  readonly element: HTMLElement;
  private readonly canvas = make("canvas", { tabindex: 0, role: "img" });
  private readonly stage: HTMLElement;
  private readonly rows = make("div", { class: "axis rows", "aria-hidden": "true" });
  private readonly columns = make("div", { class: "axis columns", "aria-hidden": "true" });
  private readonly here = make("div", { class: "here", hidden: true });
  private readonly chosen = make("div", { class: "chosen", hidden: true });
  private readonly rubber = make("div", { class: "rubber", hidden: true });
  private readonly reading = make("p", { class: "reading", "aria-live": "polite" });
  private readonly legend = make("p", { class: "scale" });
  private shown: Shown | null = null;
  private at: [number, number] = [0, 0];
  private row = -1;
  private dragged: { readonly cell: [number, number]; readonly x: number; readonly y: number } | null = null;

  constructor(private readonly caption: string, private readonly on: Listener) {
    this.stage = make("div", { class: "stage" }, this.canvas, this.chosen, this.here, this.rubber);
    this.element = make("div", { class: "heatmap" },
      make("div", { class: "frame" }, make("span", { class: "corner soft", "aria-hidden": "true" }, "query ↓ key →"), this.columns, this.rows, this.stage),
      this.reading, this.legend);
    this.listen();
    onThemeChange(() => { this.paint(); });
  }

  draw(shown: Shown): void {
    this.shown = shown;
    const [rows, columns] = this.size();
    const single = isSingle(shown.cells);
    this.canvas.setAttribute("aria-label",
      `${this.caption}: a map of ${rows} × ${columns} ${single ? "weights" : "blocks of weights"}. ` +
      "The arrow keys read it cell by cell, Enter chooses the query, + and − zoom, 0 shows the whole.");
    this.stage.style.aspectRatio = String(Math.max(0.5, Math.min(3, columns / rows)));
    this.canvas.classList.toggle("smooth", columns > SMOOTH);
    this.paint();
    this.label();
    this.place();
  }

  /** Mark the weight of a query and a key, which the reader points at in this map or in another one. */
  mark(query: number, key: number): void {
    this.at = [query, key];
    this.read();
    this.place();
  }

  /** Mark the row of a query. */
  choose(query: number): void {
    this.row = query;
    this.at = [query, this.at[1]];
    this.place();
  }

  zoom(factor: number, at: readonly [number, number] | null = null): void {
    if (this.shown === null) return;
    const { part, bounds, least } = this.shown;
    const middle = [(part.top + part.bottom) / 2, (part.left + part.right) / 2] as const;
    this.on.view(zoomed(part, bounds, factor, at ?? middle, least));
  }

  private listen(): void {
    const { canvas } = this;
    canvas.addEventListener("focus", () => { this.show(this.at); });
    canvas.addEventListener("blur", () => { this.here.hidden = true; });
    canvas.addEventListener("keydown", (event) => { this.onKey(event); });
    canvas.addEventListener("wheel", (event) => { this.onWheel(event); }, { passive: false });
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button === 0) this.dragged = { cell: this.cellAt(event), x: event.clientX, y: event.clientY };
    });
    canvas.addEventListener("pointermove", (event) => {
      if (this.isDrag(event)) this.stretch(event);
      else if (this.dragged === null) this.show(this.weightAt(this.cellAt(event)));
    });
    canvas.addEventListener("pointerup", (event) => {
      if (this.isDrag(event)) this.zoomTo(this.dragged!.cell, this.cellAt(event));
      else if (this.dragged !== null) this.on.choose(...this.weightAt(this.cellAt(event)));
      this.dragged = null;
      this.rubber.hidden = true;
    });
    canvas.addEventListener("pointerleave", () => {
      this.dragged = null;
      this.rubber.hidden = true;
    });
  }

  private onKey(event: KeyboardEvent): void {
    if (this.shown === null || event.ctrlKey || event.metaKey || event.altKey) return;
    const { cells, bounds, part } = this.shown;
    const zooms: Readonly<Record<string, number>> = { "+": 1 / ZOOM, "=": 1 / ZOOM, "-": ZOOM, "−": ZOOM };
    const factor = zooms[event.key];
    const block = [this.at[0] / cells.cellRows, this.at[1] / cells.cellColumns] as const;
    const next = moved(event.key, block, Math.ceil(bounds.bottom / cells.cellRows), Math.ceil(bounds.right / cells.cellColumns));
    if (factor !== undefined) this.zoom(factor, this.at);
    else if (event.key === "0") this.on.view(bounds);
    else if (event.key === "Enter" || event.key === " ") this.on.choose(...this.at);
    else if (next !== null) {
      const to: [number, number] = [Math.round(next[0] * cells.cellRows), Math.round(next[1] * cells.cellColumns)];
      const view = movedTo(part, bounds, to);
      if (view.top !== part.top || view.left !== part.left) this.on.view(view);
      this.show(to);
    } else return;
    event.preventDefault();
  }

  /** Zoom, but let the page scroll when the reader only passes over the map. */
  private onWheel(event: WheelEvent): void {
    if (!event.ctrlKey && document.activeElement !== this.canvas) return;
    event.preventDefault();
    this.zoom(event.deltaY < 0 ? 1 / ZOOM : ZOOM, this.weightAt(this.cellAt(event)));
  }

  private isDrag(event: PointerEvent): boolean {
    return this.dragged !== null && Math.abs(event.clientX - this.dragged.x) + Math.abs(event.clientY - this.dragged.y) > DRAG;
  }

  private stretch(event: PointerEvent): void {
    this.cover(this.rubber, this.dragged!.cell, this.cellAt(event));
  }

  private zoomTo(one: readonly [number, number], other: readonly [number, number]): void {
    const [first, last] = [this.weightAt([Math.min(one[0], other[0]), Math.min(one[1], other[1])]),
      this.weightAt([Math.max(one[0], other[0]), Math.max(one[1], other[1])])];
    const { cells, bounds, least } = this.shown!;
    const [height, width] = [last[0] - first[0] + cells.cellRows, last[1] - first[1] + cells.cellColumns];
    this.on.view({
      top: first[0], bottom: Math.min(bounds.bottom, first[0] + Math.max(height, least[0])),
      left: first[1], right: Math.min(bounds.right, first[1] + Math.max(width, least[1])),
    });
  }

  /** The numbers of rows and columns that are drawn. */
  private size(): [number, number] {
    const { cells, part } = this.shown!;
    return [Math.ceil((part.bottom - part.top) / cells.cellRows), Math.ceil((part.right - part.left) / cells.cellColumns)];
  }

  private cellAt(event: MouseEvent): [number, number] {
    const box = this.canvas.getBoundingClientRect();
    const [rows, columns] = this.size();
    const place = (share: number, length: number) => Math.max(0, Math.min(length - 1, Math.floor(share * length)));
    return [place((event.clientY - box.top) / box.height, rows), place((event.clientX - box.left) / box.width, columns)];
  }

  private weightAt(cell: readonly [number, number]): [number, number] {
    const { cells, part } = this.shown!;
    return [part.top + cell[0] * cells.cellRows, part.left + cell[1] * cells.cellColumns];
  }

  private show(at: [number, number]): void {
    this.at = at;
    this.on.point(...at);
    this.here.hidden = false;
  }

  private read(): void {
    if (this.shown === null) return;
    const { cells, largest, queries, keys, exact } = this.shown;
    const [row, column] = blockAt(cells, ...this.at);
    if (row < 0 || column < 0 || row >= cells.rows || column >= cells.columns) return;
    const place = row * cells.columns + column;
    const textOf = (values: ArrayLike<number>) => (exact ? exactText(values[place]!) : `about ${threeDigits(values[place]!)}`);
    const value = textOf(cells.values);
    if (isSingle(cells)) {
      this.reading.replaceChildren(named(queries, row + cells.top, "query"), " → ", named(keys, column + cells.left, "key"), ": ", make("strong", {}, value));
      return;
    }
    const [from, to] = [spanOf(cells.top, cells.cellRows, row, cells.bottom), spanOf(cells.left, cells.cellColumns, column, cells.right)];
    const most = largest === null ? "" : `, largest ${textOf(largest.values)}`;
    this.reading.replaceChildren(`queries ${from[0]} – ${from[1]} `, bdi(queries[from[0]]!), ` → keys ${to[0]} – ${to[1]} `, bdi(keys[to[0]]!),
      ": mean ", make("strong", {}, value), most);
  }

  private paint(): void {
    if (this.shown === null) return;
    const { cells, part, limit, largest } = this.shown;
    const theme = themeNow();
    const palette = Array.from({ length: 2 * LEVELS + 1 }, (_, i) => colorOf(i - LEVELS, theme));
    const [rows, columns] = this.size();
    const [top, left] = blockAt(cells, part.top, part.left);
    const image = new ImageData(columns, rows);
    for (let i = 0; i < rows; i++) {
      for (let j = 0; j < columns; j++) {
        const value = cells.values[(top + i) * cells.columns + left + j] ?? 0;
        const [red, green, blue] = palette[levelOfWeight(value, limit) + LEVELS]!;
        image.data.set([red, green, blue, 255], 4 * (i * columns + j));
      }
    }
    this.canvas.width = columns;
    this.canvas.height = rows;
    this.canvas.getContext("2d")!.putImageData(image, 0, 0);
    this.explain(limit, isSingle(cells), largest === null);
  }

  private explain(limit: number, single: boolean, signed: boolean): void {
    const most = cellText(limit, limit);
    const what = single ? "the largest weight in sight" : "99 % of the blocks in sight have less";
    this.legend.replaceChildren(
      signed ? `−${most}` : "0", make("span", { class: signed ? "bar both" : "bar" }), most,
      make("span", { class: "soft" }, `${signed ? "difference; " : `${what}; `}colors follow the square root`));
  }

  private label(): void {
    const { cells, part, queries, keys } = this.shown!;
    const [rows, columns] = this.size();
    const labels = (count: number, start: number, step: number, texts: readonly string[], side: "top" | "left") => {
      const stride = Math.max(1, Math.ceil(count / MOST_LABELS));
      return Array.from({ length: Math.ceil(count / stride) }, (_, n) => {
        const place = start + n * stride * step;
        const text = labelText(texts[place] ?? "");
        const numbered = stride > 1 || step > 1;
        return make("span", { style: `${side}:${((n * stride + 0.5) / count) * 100}%` },
          ...(numbered ? [make("small", {}, `${place} `)] : []), bdi(text));
      });
    };
    const longest = Math.max(...[...keys.slice(part.left, part.left + MOST_LABELS)].map((it) => [...labelText(it)].length));
    this.columns.style.height = `${Math.min(5.5, 1.4 + 0.45 * longest)}rem`;
    this.rows.replaceChildren(...labels(rows, part.top, cells.cellRows, queries, "top"));
    this.columns.replaceChildren(...labels(columns, part.left, cells.cellColumns, keys, "left"));
  }

  /** Put the marks where the weight and the row are drawn. */
  private place(): void {
    if (this.shown === null) return;
    const { cells, part } = this.shown;
    const [rows, columns] = this.size();
    const cellOf = (query: number, key: number): [number, number] => blockAt({ ...cells, top: part.top, left: part.left }, query, key);
    const [row, column] = cellOf(...this.at);
    const visible = row >= 0 && column >= 0 && row < rows && column < columns;
    if (visible) {
      const shown = !this.here.hidden;
      this.cover(this.here, [row, column], [row, column]);
      this.here.hidden = !shown;
    } else this.here.hidden = true;
    const chosen = cellOf(this.row, 0)[0];
    if (this.row >= 0 && chosen >= 0 && chosen < rows) this.cover(this.chosen, [chosen, 0], [chosen, columns - 1]);
    else this.chosen.hidden = true;
  }

  /** Lay a frame over the cells between two corners. */
  private cover(frame: HTMLElement, one: readonly [number, number], other: readonly [number, number]): void {
    const [rows, columns] = this.size();
    const [top, left] = [Math.min(one[0], other[0]), Math.min(one[1], other[1])];
    const [height, width] = [Math.abs(one[0] - other[0]) + 1, Math.abs(one[1] - other[1]) + 1];
    frame.hidden = false;
    Object.assign(frame.style, {
      top: `${(100 * top) / rows}%`, left: `${(100 * left) / columns}%`,
      height: `${(100 * height) / rows}%`, width: `${(100 * width) / columns}%`,
    });
  }
}

/** The level of a weight's color, which follows its square root: so small weights can be seen beside large ones. */
export function levelOfWeight(value: number, limit: number): number {
  return limit === 0 ? 0 : levelOf(Math.sign(value) * Math.sqrt(Math.abs(value) / limit), 1);
}

/** The class of a color in a text. */
export function tintOf(value: number, limit: number): string {
  return `tint p${levelOfWeight(Math.max(0, value), limit)}`;
}

export function bdi(text: string): HTMLElement {
  return make("bdi", {}, labelText(text));
}

/** A token with its place: “token” (query 12). */
export function named(texts: readonly string[], place: number, kind: string): HTMLElement {
  return make("span", {}, "“", bdi(texts[place] ?? ""), "” ", make("span", { class: "soft" }, `(${kind} ${place})`));
}
