/** One head, or the same head of two models: its map, the chosen query's keys, and the text. */

import { heading, make, uniqueId } from "./elements.js";
import { bdi, HeatMap, named, type Shown } from "./heatmap.js";
import { headName } from "./head_grid.js";
import {
  colorLimit, differenceOf, isSingle, largestOfRow, readHead, rowOf, topKeysOf,
  type Blocks, type Cells, type HeadData, type HeadsContent, type KeyWeight, type Layer, type Place,
} from "./heads.js";
import { exactText } from "./numbers.js";
import { Tiles } from "./tiles.js";
import { linesOf, type QueryLines } from "./token_lines.js";
import { TokenText } from "./token_text.js";
import { centeredOn, covers, isWhole, snapped, wholeMap, type Rectangle } from "./zoom.js";

const LISTED = 8;
/** Tokens up to which each query has its lines; of longer texts, only those near the chosen one. */
const ALL_LINES = 40;
const NEAR = 8;
/** Blocks along a side of the map, below which the server is asked for smaller ones. */
const COARSE = 100;
const PAUSE = 120;

/** Numbers of the chosen query, and of tokens as keys, by their names in the data. */
const OF_QUERIES: Readonly<Record<string, string>> = {
  entropy: "entropy", largest_weight: "largest weight", mean_distance: "mean distance",
};
const RECEIVED = "received_mass";

interface Coloring {
  readonly name: string;
  readonly ofKeys: boolean;
  readonly value: ((token: number) => number) | null;
  readonly limit: number;
}

export class HeadPanel {
  readonly element = make("section", { class: "one-head" });
  /** The chosen query. */
  query = 0;
  private readonly tiles: Tiles | null;
  private readonly maps: readonly HeatMap[];
  private readonly title = make("div");
  private readonly facts = make("dl", { class: "facts" });
  private readonly tools: HTMLElement;
  private readonly status = make("span", { class: "soft", role: "status" });
  private readonly queryTitle = make("div");
  private readonly rowsOfQuery = make("div", { class: "of-query" });
  private readonly text: TokenText;
  private readonly colorings: HTMLSelectElement;
  private readonly kind: HTMLSelectElement;
  private readonly mapArea: HTMLElement;
  private place: Place = { layer: 0, head: 0 };
  private heads: readonly HeadData[] = [];
  private part: Rectangle = wholeMap(1, 1);
  private finer: Blocks | null = null;
  private showsLargest = false;
  private coloring = 0;
  private fetchedRow: { readonly query: number; readonly row: ArrayLike<number> } | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;

  constructor(private readonly content: HeadsContent, private readonly bytes: ArrayBuffer, private readonly level: number) {
    this.tiles = content.tiles === null ? null : new Tiles(content.tiles);
    const listener = {
      point: (query: number, key: number) => { for (const map of this.maps) map.mark(query, key); },
      choose: (query: number, key: number) => {
        listener.point(query, key);
        this.choose(query);
      },
      view: (part: Rectangle) => { this.view(part); },
    };
    const titles = content.models.length === 1 ? ["Weights"] : ["The first", "The second", "The first less the second"];
    this.maps = titles.map((it) => new HeatMap(it, listener));
    this.kind = make("select", { id: uniqueId("choice") }, make("option", { value: 0 }, "the mean of each block"), make("option", { value: 1 }, "the largest of each block"));
    this.kind.addEventListener("change", () => {
      this.showsLargest = this.kind.value === "1";
      this.draw();
    });
    this.tools = this.makeTools();
    this.text = new TokenText("The text, token by token", (token) => { this.chooseFromText(token); });
    this.colorings = make("select", { id: uniqueId("choice") });
    this.colorings.addEventListener("change", () => {
      this.coloring = Number(this.colorings.value);
      this.color();
    });
    this.mapArea = make("div", { class: "maps" }, ...this.maps.map((map, i) =>
      make("figure", {}, ...(titles.length > 1 ? [make("figcaption", {}, titles[i]!)] : []), map.element)));
    this.element.append(
      this.title, this.facts, this.tools, this.mapArea,
      make("section", { class: "query" }, this.queryTitle, this.rowsOfQuery),
      make("section", { class: "whole-text" }, heading(level + 1, {}, "The text"),
        make("p", { class: "controls" }, make("label", { for: this.colorings.id }, "Color the tokens by ", this.colorings)), this.text.element));
  }

  private get layer(): Layer {
    return this.content.models[0]!.layers[this.place.layer]!;
  }

  private texts(count: number): readonly string[] {
    const { labels } = this.content;
    return labels.length === count ? labels : numbered(count);
  }

  /** Show a head. */
  show(place: Place): void {
    const before = this.heads.length > 0 ? this.layer : null;
    this.place = place;
    const { layer } = this;
    if (before === null || before.queries !== layer.queries || before.keys !== layer.keys) {
      this.part = wholeMap(layer.queries, layer.keys);
      this.query = before === null ? Math.floor(layer.queries / 2) : Math.min(this.query, layer.queries - 1);
    }
    this.finer = this.fetchedRow = null;
    const name = headName(this.content.models[0]!, place);
    void Promise.all(this.content.models.map((model) => {
      const it = model.layers[place.layer]!;
      return readHead(it, it.heads[place.head]!, this.bytes);
    })).then((heads) => {
      if (place !== this.place) return;
      this.heads = heads;
      this.title.replaceChildren(heading(this.level, {}, name));
      this.facts.replaceChildren(...this.factsOfHead());
      this.refresh();
      this.element.dataset["shown"] = `${place.layer}.${place.head}`;
    });
  }

  /** Mark tokens that were searched for. */
  mark(tokens: readonly number[]): void {
    this.text.mark(tokens);
  }

  /** Choose a token as the query, and show it in the map and the text. */
  chooseToken(token: number): void {
    if (token >= this.layer.queries) return;
    const { queries, keys } = this.layer;
    const bounds = wholeMap(queries, keys);
    if (!isWhole(this.part, bounds)) this.view(centeredOn(this.part, bounds, [token, Math.min(token, keys - 1)]));
    for (const map of this.maps) map.mark(token, Math.min(token, keys - 1));
    this.choose(token);
  }

  private factsOfHead(): HTMLElement[] {
    const { models, distances } = this.content;
    const valueIn = (it: { readonly values: readonly (readonly (number | null)[])[] }) => it.values[this.place.layer]![this.place.head]!;
    const rows = models[0]!.statistics.map((it, i) => ({
      name: it.name, about: it.about, values: models.map((model) => valueIn(model.statistics[i]!) as number | null),
    }));
    if (distances !== null) rows.unshift({ name: distances.name, about: distances.about, values: [valueIn(distances)] });
    return rows.map((row) => make("div", { title: row.about }, make("dt", {}, row.name),
      make("dd", {}, row.values.map((value) => (value === null ? "–" : exactText(value))).join(" | "))));
  }

  private makeTools(): HTMLElement {
    const button = (text: string, name: string, press: () => void) => {
      const it = make("button", { type: "button", "aria-label": name, title: name }, text);
      it.addEventListener("click", press);
      return it;
    };
    return make("div", { class: "controls tools", role: "group", "aria-label": "The map" },
      button("+", "Zoom in", () => { this.maps[0]!.zoom(0.5, this.center()); }),
      button("−", "Zoom out", () => { this.maps[0]!.zoom(2); }),
      button("Whole", "Show the whole map", () => { this.view(wholeMap(this.layer.queries, this.layer.keys)); }),
      make("label", { for: this.kind.id, class: "kind" }, "Cells show ", this.kind), this.status);
  }

  /** Where the buttons zoom to: the chosen query, if it is in sight, and the middle of the keys that it sees. */
  private center(): readonly [number, number] | null {
    const { part, query } = this;
    return query >= part.top && query < part.bottom ? [query, Math.max(part.left, Math.min(query, part.right - 1))] : null;
  }

  private refresh(): void {
    const blocks = this.heads[0]!.blocks;
    this.tools.hidden = this.mapArea.hidden = blocks === null;
    this.draw();
    this.choose(this.query);
    this.setColorings();
    this.load();
  }

  private view(part: Rectangle): void {
    this.part = part;
    this.finer = this.finer !== null && covers(this.finer.mean, part) ? this.finer : null;
    this.draw();
    this.load();
  }

  /** The blocks of each model that are drawn now. */
  private blocks(): Blocks[] {
    if (this.finer !== null) return [this.finer];
    return this.heads.flatMap((it) => (it.blocks === null ? [] : [it.blocks]));
  }

  private draw(): void {
    const blocks = this.blocks();
    if (blocks.length === 0) return;
    const held = this.heads[0]!.blocks!.mean;
    const bounds = wholeMap(this.layer.queries, this.layer.keys);
    const single = isSingle(blocks[0]!.mean);
    this.kind.parentElement!.hidden = single;
    const chosen = blocks.map((it) => (this.showsLargest ? it.largest : it.mean));
    const difference = chosen.length === 2 ? differenceOf(chosen[0]!, chosen[1]!) : null;
    const least: [number, number] = this.tiles === null ? [4 * held.cellRows, 4 * held.cellColumns] : [8, 8];
    const drawn: [Cells, Cells | null][] = chosen.map((cells, i) => [cells, blocks[i]!.largest]);
    if (difference !== null) drawn.push([difference, null]);
    drawn.forEach(([cells, largest], i) => {
      this.maps[i]!.draw({
        cells, largest, bounds, least,
        part: snapped(this.part, cells, cells.cellRows, cells.cellColumns),
        queries: this.texts(this.layer.queries), keys: this.texts(this.layer.keys),
      } satisfies Shown);
    });
    this.mapArea.lastElementChild!.toggleAttribute("hidden", this.content.models.length === 2 && difference === null);
    const { top, bottom, left, right } = this.part;
    const where = isWhole(this.part, bounds) ? "" : `queries ${top} – ${bottom - 1}, keys ${left} – ${right - 1}; `;
    const { cellRows, cellColumns } = chosen[0]!;
    this.status.textContent = where + (single ? "a cell for each weight" : `blocks of ${cellRows} × ${cellColumns} weights`);
  }

  /** Ask the server for smaller blocks, where those of the page are too large for what is in sight. */
  private load(): void {
    clearTimeout(this.timer);
    const cells = this.blocks()[0]?.mean;
    if (this.tiles === null || cells === undefined || isSingle(cells)) return;
    const { part, place, tiles } = this;
    const most = Math.max((part.bottom - part.top) / cells.cellRows, (part.right - part.left) / cells.cellColumns);
    if (most >= COARSE) return;
    this.timer = setTimeout(() => {
      this.status.textContent = "asking the server …";
      tiles.tile(place, part).then((tile) => {
        if (place !== this.place || part !== this.part) return;
        this.finer = tile;
        this.draw();
      }, (error: unknown) => { this.status.textContent = String(error); });
    }, PAUSE);
  }

  private chooseFromText(token: number): void {
    const { queries, keys } = this.layer;
    if (queries === keys || !this.colorings.selectedOptions[0]?.dataset["keys"]) this.chooseToken(token);
    else for (const map of this.maps) map.mark(this.query, token);
  }

  private choose(query: number): void {
    this.query = query;
    for (const map of this.maps) map.choose(query);
    if (this.layer.queries === this.layer.keys) this.text.choose(query);
    this.queryTitle.replaceChildren(heading(this.level + 1, {}, named(this.texts(this.layer.queries), query, "query"), " attends to"));
    this.rowsOfQuery.replaceChildren(...this.heads.map((head, i) => this.ofQuery(head, i)));
    this.color();
    this.loadRow();
  }

  /** Ask the server for all weights of the chosen query, if the page has only blocks. */
  private loadRow(): void {
    const { tiles, place, query } = this;
    if (tiles === null || this.fetchedRow?.query === query || this.heads.every((it) => rowOf(it, query) !== null)) return;
    const { keys } = this.layer;
    tiles.tile(place, { top: query, bottom: query + 1, left: 0, right: keys }, keys).then((tile) => {
      if (place !== this.place || query !== this.query || tile.mean.columns !== keys) return;
      this.fetchedRow = { query, row: tile.mean.values };
      this.choose(query);
    }, (error: unknown) => { this.status.textContent = String(error); });
  }

  private ofQuery(head: HeadData, model: number): HTMLElement {
    const { content, query } = this;
    const top = this.topKeys(head, query);
    const title = content.models.length > 1 ? make("p", { class: "soft" }, model === 0 ? "The first" : "The second") : null;
    const facts = [...Object.entries(OF_QUERIES), [RECEIVED, "received mass"] as const].flatMap(([name, text]) => {
      const numbers = head.tokens[name];
      const ofToken = name !== RECEIVED || head.queries === head.keys;
      return numbers === undefined || !ofToken ? []
        : [make("div", {}, make("dt", {}, text), make("dd", {}, exactText(numbers.values[Math.floor(query / numbers.block)]!)))];
    });
    const table = top === null
      ? make("p", { class: "soft" }, "This page holds blocks of weights, which name no single keys. `heedful show … --serve` finds them.")
      : this.table(top);
    const lines = this.lines(head);
    return make("div", { class: "row" }, title, make("dl", { class: "facts" }, ...facts), make("div", { class: "pair" }, table, lines));
  }

  private topKeys(head: HeadData, query: number): KeyWeight[] | null {
    const { fetchedRow } = this;
    if (fetchedRow?.query === query) return largestOfRow(fetchedRow.row, LISTED);
    return topKeysOf(head, query, LISTED);
  }

  private table(top: readonly KeyWeight[]): HTMLElement {
    const texts = this.texts(this.layer.keys);
    const rest = Math.max(0, 1 - top.reduce((total, it) => total + it.weight, 0));
    const bar = (weight: number) => make("td", { class: "bar-cell" }, make("span", { class: "weight-bar", style: `width:${100 * Math.min(1, weight)}%` }));
    return make("div", { class: "terms" }, make("table", {},
      make("thead", {}, make("tr", {}, make("th", { scope: "col" }, "key"), make("th", { scope: "col" }, "place"), make("th", { scope: "col" }, "weight"), make("td"))),
      make("tbody", {}, ...top.map(({ key, weight }) => make("tr", {},
        make("th", { scope: "row" }, bdi(texts[key] ?? "")), make("td", {}, String(key)), make("td", {}, exactText(weight)), bar(weight)))),
      make("tfoot", {}, make("tr", {}, make("th", { scope: "row" }, "all others"), make("td"), make("td", {}, exactText(rest)), bar(rest)))));
  }

  private lines(head: HeadData): Element | null {
    const { queries } = this.layer;
    const [from, to] = queries <= ALL_LINES ? [0, queries] : [Math.max(0, this.query - NEAR), Math.min(queries, this.query + NEAR + 1)];
    const lines: QueryLines[] = [];
    for (let query = from; query < to; query++) lines.push({ query, keys: this.topKeys(head, query) ?? [] });
    if (lines.every((it) => it.keys.length === 0)) return null;
    return linesOf(lines, this.texts(queries), this.texts(this.layer.keys), this.query, (query) => { this.choose(query); });
  }

  private setColorings(): void {
    const options = this.options();
    this.coloring = Math.min(this.coloring, options.length - 1);
    this.colorings.replaceChildren(...options.map((it, i) =>
      make("option", { value: i, selected: i === this.coloring, "data-keys": it.ofKeys }, it.name)));
    this.colorings.value = String(this.coloring);
    this.color();
  }

  private color(): void {
    const option = this.options()[this.coloring];
    if (option === undefined) return;
    this.text.show(this.texts(option.ofKeys ? this.layer.keys : this.layer.queries));
    this.text.color(option.value, option.limit);
  }

  /** What the text can be colored by, for each model. */
  private options(): Coloring[] {
    return this.heads.flatMap((head, i) => {
      const whose = this.heads.length === 1 ? "" : i === 0 ? " (the first)" : " (the second)";
      const row = this.rowValues(head);
      const colorings: Coloring[] = row === null ? [] : [{ name: `the weight that the query gives them${whose}`, ofKeys: true, ...row }];
      for (const [name, text] of [...Object.entries(OF_QUERIES), [RECEIVED, "the mass that they receive"] as const]) {
        const numbers = head.tokens[name];
        if (numbers === undefined) continue;
        const { values, block } = numbers;
        colorings.push({
          name: `${name === RECEIVED ? text : `their ${text}`}${whose}`, ofKeys: name === RECEIVED,
          value: (token) => values[Math.floor(token / block)]!, limit: colorLimit(values, name !== RECEIVED),
        });
      }
      return colorings;
    });
  }

  private rowValues(head: HeadData): Pick<Coloring, "value" | "limit"> | null {
    const row = this.fetchedRow?.query === this.query ? this.fetchedRow.row : rowOf(head, this.query);
    if (row !== null) return { value: (token) => row[token]!, limit: 1 };
    if (head.blocks === null) return null;
    const { cellRows, cellColumns, columns, values } = head.blocks.mean;
    const first = Math.floor(this.query / cellRows) * columns;
    const blocks = Array.from({ length: columns }, (_, j) => values[first + j]!);
    return { value: (token) => blocks[Math.floor(token / cellColumns)]!, limit: colorLimit(blocks, false) };
  }
}

const numbers = new Map<number, readonly string[]>();

/** Names for tokens without labels; the same list for the same count. */
function numbered(count: number): readonly string[] {
  const known = numbers.get(count) ?? Array.from({ length: count }, (_, i) => String(i));
  numbers.set(count, known);
  return known;
}
