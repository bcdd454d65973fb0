/** The map of a head, or of the same head of two models with their difference: zooming, and tiles from the server. */

import { make, uniqueId } from "./elements.js";
import { HeatMap } from "./heatmap.js";
import { colorLimit, differenceOf, isSingle, valuesWithin, type Blocks, type Cells, type HeadData, type Layer, type Place } from "./heads.js";
import type { Tiles } from "./tiles.js";
import { centeredOn, covers, isWhole, needsFiner, snapped, wholeMap, type Rectangle } from "./zoom.js";

/** Milliseconds without another zoom, after which the server is asked. */
const PAUSE = 120;
/** The least number of blocks of the page, and of tokens of a tile, along a side of a part. */
const LEAST_BLOCKS = 4;
const LEAST_TOKENS = 8;

export interface ShownHead {
  readonly place: Place;
  readonly layer: Layer;
  /** The head of each model. */
  readonly heads: readonly HeadData[];
  readonly queries: readonly string[];
  readonly keys: readonly string[];
  /** Whether queries and keys are the same tokens. */
  readonly same: boolean;
}

export class MapPanel {
  readonly element: HTMLElement;
  private readonly maps: readonly HeatMap[];
  private readonly figures: readonly HTMLElement[];
  private readonly status = make("span", { class: "soft", role: "status" });
  private readonly kind = make("select", { id: uniqueId("choice") },
    make("option", { value: 0 }, "the mean of each block"), make("option", { value: 1 }, "the largest of each block"));
  private shown: ShownHead | null = null;
  private part: Rectangle = wholeMap(1, 1);
  private finer: Blocks | null = null;
  private query = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;

  /**
   * @param compared Whether two models are compared.
   * @param tiles What asks the page's server; null without one.
   * @param onChoose Receives the query that the reader chooses.
   */
  constructor(compared: boolean, private readonly tiles: Tiles | null, onChoose: (query: number) => void) {
    const listener = {
      point: (query: number, key: number) => { this.mark(query, key); },
      choose: (query: number, key: number) => {
        this.mark(query, key);
        onChoose(query);
      },
      view: (part: Rectangle) => { this.view(part); },
    };
    const titles = compared ? ["The first", "The second", "The first less the second"] : ["Weights"];
    this.maps = titles.map((it) => new HeatMap(it, listener));
    this.figures = this.maps.map((map, i) =>
      make("figure", {}, ...(compared ? [make("figcaption", {}, titles[i]!)] : []), map.element));
    this.kind.addEventListener("change", () => { this.draw(); });
    const hint = "Point at a cell, or reach it with Tab and the arrow keys. Click to follow its query, drag to zoom.";
    this.element = make("div", { class: "map-panel" }, this.tools(), make("div", { class: "maps" }, ...this.figures),
      make("p", { class: "soft hint" }, hint));
  }

  show(shown: ShownHead): void {
    const { layer } = shown;
    const same = this.shown !== null && this.shown.layer.queries === layer.queries && this.shown.layer.keys === layer.keys;
    if (!same) this.part = wholeMap(layer.queries, layer.keys);
    this.shown = shown;
    this.finer = null;
    this.element.hidden = shown.heads[0]!.blocks === null;
    this.draw();
    this.load();
  }

  /** Mark the row of a query. */
  choose(query: number): void {
    this.query = query;
    for (const map of this.maps) map.choose(query);
  }

  /** Mark the weight of a query and a key. */
  mark(query: number, key: number): void {
    for (const map of this.maps) map.mark(query, key);
  }

  /** Bring a token into sight. */
  center(token: number): void {
    const bounds = this.bounds();
    const at = [token, Math.min(token, bounds.right - 1)] as const;
    if (!isWhole(this.part, bounds)) this.view(centeredOn(this.part, bounds, at));
    this.mark(...at);
  }

  private tools(): HTMLElement {
    const button = (text: string, name: string, press: () => void) => {
      const it = make("button", { type: "button", "aria-label": name, title: name }, text);
      it.addEventListener("click", press);
      return it;
    };
    return make("div", { class: "controls tools", role: "group", "aria-label": "The map" },
      button("+", "Zoom in", () => { this.maps[0]!.zoom(0.5, this.near()); }),
      button("−", "Zoom out", () => { this.maps[0]!.zoom(2, this.near()); }),
      button("Whole", "Show the whole map", () => { this.view(this.bounds()); }),
      make("span", { class: "choice" }, make("label", { for: this.kind.id }, "Cells show "), this.kind), this.status);
  }

  private bounds(): Rectangle {
    const { queries, keys } = this.shown!.layer;
    return wholeMap(queries, keys);
  }

  /** Where the buttons zoom to: the chosen query at the diagonal, if it is in sight. */
  private near(): readonly [number, number] | null {
    const { part, query } = this;
    return query >= part.top && query < part.bottom ? [query, Math.max(part.left, Math.min(query, part.right - 1))] : null;
  }

  private view(part: Rectangle): void {
    this.part = part;
    if (this.finer !== null && !covers(this.finer.mean, part)) this.finer = null;
    this.draw();
    this.load();
  }

  /** What is drawn of each model: the tile of the server, or the blocks of the page. */
  private blocks(): Blocks[] {
    if (this.finer !== null) return [this.finer];
    return this.shown!.heads.flatMap((it) => (it.blocks === null ? [] : [it.blocks]));
  }

  private draw(): void {
    const blocks = this.blocks();
    if (blocks.length === 0) return;
    const { heads, queries, keys } = this.shown!;
    const held = heads[0]!.blocks!.mean;
    const bounds = this.bounds();
    const chosen = blocks.map((it) => (this.kind.value === "1" ? it.largest : it.mean));
    const difference = chosen.length === 2 ? differenceOf(chosen[0]!, chosen[1]!) : null;
    const drawn: [Cells, Cells | null][] = chosen.map((cells, i) => [cells, blocks[i]!.largest]);
    if (difference !== null) drawn.push([difference, null]);
    // Two models share a scale, so that equal colors are equal weights.
    const limitOf = (cells: Cells) => colorLimit(valuesWithin(cells, snapped(this.part, cells, bounds)), isSingle(cells));
    const limit = Math.max(...chosen.map(limitOf));
    this.figures.forEach((figure, i) => { figure.hidden = i >= drawn.length; });
    drawn.forEach(([cells, largest], i) => {
      this.maps[i]!.draw({
        cells, largest, bounds, queries, keys,
        exact: this.finer !== null || heads.every((it) => it.exact),
        part: snapped(this.part, cells, bounds),
        limit: cells === difference ? limitOf(cells) : limit,
        least: this.tiles === null ? [LEAST_BLOCKS * held.cellRows, LEAST_BLOCKS * held.cellColumns] : [LEAST_TOKENS, LEAST_TOKENS],
      });
    });
    this.kind.parentElement!.hidden = isSingle(chosen[0]!);
    this.status.textContent = this.described(chosen[0]!);
  }

  private described(cells: Cells): string {
    const { top, bottom, left, right } = this.part;
    const where = isWhole(this.part, this.bounds()) ? "" : `queries ${top} – ${bottom - 1}, keys ${left} – ${right - 1}; `;
    return where + (isSingle(cells) ? "a cell for each weight" : `blocks of ${cells.cellRows} × ${cells.cellColumns} weights`);
  }

  /** Ask the server for smaller blocks, where those that are drawn are too large for what is in sight. */
  private load(): void {
    clearTimeout(this.timer);
    const cells = this.blocks()[0]?.mean;
    const { part, shown, tiles } = this;
    if (tiles === null || shown === null || cells === undefined || !needsFiner(cells, part)) return;
    this.timer = setTimeout(() => {
      this.status.textContent = "asking the server …";
      tiles.tile(shown.place, part).then((tile) => {
        if (shown !== this.shown || part !== this.part) return;
        this.finer = tile;
        this.draw();
      }, (error: unknown) => { this.status.textContent = String(error); });
    }, PAUSE);
  }
}
