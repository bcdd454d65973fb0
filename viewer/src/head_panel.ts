/** One head, or the same head of two models: its map, what the chosen query attends to, and the text. */

import { coloringsOf } from "./colorings.js";
import { heading, make, uniqueId } from "./elements.js";
import { headName } from "./head_grid.js";
import { found, isSingle, readHead, rowOf, type HeadsContent, type Place, type Statistic } from "./heads.js";
import { named } from "./heatmap.js";
import { MapPanel, type ShownHead } from "./map_panel.js";
import { exactText } from "./numbers.js";
import { queryRow } from "./query_row.js";
import { Tiles } from "./tiles.js";
import { TokenText } from "./token_text.js";

export class HeadPanel {
  readonly element = make("section", { class: "one-head" });
  private query = -1;
  /** The chosen token of the keys, where they are of another text. */
  private key = 0;
  private readonly tiles: Tiles | null;
  private readonly map: MapPanel;
  private readonly title = make("div");
  private readonly facts = make("dl", { class: "facts" });
  private readonly queryTitle = make("div", { "aria-live": "polite" });
  private readonly rows = make("div", { class: "of-query" });
  private readonly text: TokenText;
  private readonly textTitle = make("div");
  /** The text that is shown: that of the queries, or that of the keys. */
  private labels: readonly string[] = [];
  private wanted = "";
  private readonly colorings = make("select", { id: uniqueId("choice") });
  private readonly scale = make("span", { class: "soft" });
  private place: Place | null = null;
  private shown: ShownHead | null = null;
  /** All weights of the chosen query, from the server. */
  private row: ArrayLike<number> | null = null;

  constructor(private readonly content: HeadsContent, private readonly bytes: ArrayBuffer, private readonly level: number) {
    this.tiles = content.tiles === null ? null : new Tiles(content.tiles, content.models[0]!.layers.map((it) => it.place));
    this.map = new MapPanel(content.models.length > 1, this.tiles, (query) => { this.choose(query); });
    this.text = new TokenText("The text, token by token", (token) => { this.chooseToken(token); });
    this.colorings.addEventListener("change", () => { this.color(); });
    this.element.append(this.title, this.facts, this.map.element,
      make("section", { class: "query" }, this.queryTitle, this.rows),
      make("section", { class: "whole-text" }, this.textTitle,
        make("p", { class: "controls" }, make("label", { for: this.colorings.id }, "Color the tokens by"), this.colorings, this.scale),
        this.text.element));
  }

  /** Show a head, once its numbers are inflated. */
  async show(place: Place): Promise<void> {
    this.place = place;
    const { models } = this.content;
    const heads = await Promise.all(models.map((model) => {
      const layer = model.layers[place.layer]!;
      return readHead(layer, layer.heads[place.head]!, this.bytes);
    }));
    if (place !== this.place) return; // the reader has gone on to another head
    const layer = models[0]!.layers[place.layer]!;
    const { labels, keyLabels } = this.content;
    this.shown = {
      place, layer, heads, queries: texts(labels, layer.queries), keys: texts(keyLabels ?? labels, layer.keys),
      same: keyLabels === null && layer.queries === layer.keys,
    };
    this.title.replaceChildren(heading(this.level, {}, headName(models[0]!, place)));
    this.facts.replaceChildren(...this.factsOf(place));
    this.map.show(this.shown);
    this.setColorings();
    this.choose(this.query < 0 ? Math.floor(layer.queries / 2) : Math.min(this.query, layer.queries - 1));
    this.element.dataset["shown"] = `${place.layer}.${place.head}`;
  }

  /** Find the tokens of the text that contain something, mark them, and return their places. */
  find(wanted: string): readonly number[] {
    this.wanted = wanted;
    const places = found(this.labels, wanted);
    this.text.mark(places);
    return places;
  }

  /** The chosen token of the text that is shown. */
  get token(): number {
    return this.showsOtherText() ? this.key : this.query;
  }

  /** Choose a token as the query, and show it in the map and the text; or point at it where the text has keys alone. */
  chooseToken(token: number): void {
    if (this.shown === null) return;
    const { layer } = this.shown;
    if (this.showsOtherText()) {
      this.key = token;
      this.map.mark(this.query, token);
      this.text.choose(token);
    } else if (token < layer.queries) {
      this.map.center(token);
      this.choose(token);
    }
  }

  private factsOf(place: Place): HTMLElement[] {
    const { models, distances } = this.content;
    const fact = (statistics: readonly Statistic[]) => {
      const values = statistics.map((it) => it.values[place.layer]![place.head]!) as (number | null)[];
      const { name, about } = statistics[0]!;
      return make("div", { title: about }, make("dt", {}, name),
        make("dd", {}, values.map((value) => (value === null ? "–" : exactText(value))).join(" | ")));
    };
    const rows = models[0]!.statistics.map((it) =>
      fact(models.flatMap((model) => model.statistics.filter((other) => other.name === it.name))));
    return distances === null ? rows : [fact([distances]), ...rows];
  }

  private choose(query: number): void {
    const shown = this.shown!;
    if (query !== this.query) this.row = null;
    this.query = query;
    this.map.choose(query);
    this.queryTitle.replaceChildren(heading(this.level + 1, {}, named(shown.queries, query, "query"), " attends to"));
    this.showRow();
    void this.loadRow();
  }

  private showRow(): void {
    const shown = this.shown!;
    this.rows.replaceChildren(...shown.heads.map((head, i) => make("div", {},
      shown.heads.length > 1 ? make("p", { class: "soft" }, i === 0 ? "The first" : "The second") : null,
      queryRow(shown, head, this.query, this.row, (query) => { this.choose(query); }))));
    this.color();
  }

  /** Ask the server for all weights of the chosen query, if the page has only blocks. */
  private async loadRow(): Promise<void> {
    const { tiles, shown, query } = this;
    if (tiles === null || shown === null || shown.heads.every((it) => rowOf(it, query) !== null)) return;
    const { keys } = shown.layer;
    const row = await tiles.row(shown.place, query, keys).catch(() => null); // then the map says what the server answers
    if (row === null || shown !== this.shown || query !== this.query || row.length !== keys) return;
    this.row = row;
    this.showRow();
  }

  /** Offer the colorings of the head. Those of blocks say little of tokens, so that they are not the first choice. */
  private setColorings(): void {
    const { heads } = this.shown!;
    const before = this.colorings.selectedIndex;
    const options = coloringsOf(heads, 0, this.tiles === null ? null : []); // the server sends each query's weights
    const blocks = heads[0]!.blocks !== null && !isSingle(heads[0]!.blocks.mean);
    const first = blocks && options.length > 1 && this.tiles === null ? 1 : 0;
    this.colorings.replaceChildren(...options.map((it, i) => make("option", { value: i }, it.name)));
    this.colorings.selectedIndex = before >= 0 && before < options.length ? before : first;
  }

  /** Whether the text is that of the keys, and not that of the queries, too. */
  private showsOtherText(): boolean {
    return !this.shown!.same && (coloringsOf(this.shown!.heads, this.query, this.row)[this.colorings.selectedIndex]?.ofKeys ?? false);
  }

  private color(): void {
    const { heads, queries, keys, same } = this.shown!;
    const coloring = coloringsOf(heads, this.query, this.row)[this.colorings.selectedIndex] ?? null;
    const ofKeys = coloring?.ofKeys === true;
    const labels = ofKeys ? keys : queries;
    if (labels !== this.labels) {
      this.labels = labels;
      this.textTitle.replaceChildren(heading(this.level + 1, {}, same ? "The text" : `The text of the ${ofKeys ? "keys" : "queries"}`));
      this.text.show(labels);
      this.find(this.wanted);
    }
    this.text.color(coloring?.value ?? null, coloring?.limit ?? 0);
    this.scale.textContent = coloring === null ? "" : `the strongest color is ${exactText(coloring.limit)}`;
    this.text.choose(ofKeys && !same ? Math.min(this.key, keys.length - 1) : this.query);
  }
}

const known = new Map<number, readonly string[]>();

function texts(labels: readonly string[], count: number): readonly string[] {
  return labels.length === count ? labels : numbered(count);
}

/** Numbers for tokens without labels: the same list for the same count. */
function numbered(count: number): readonly string[] {
  const found = known.get(count) ?? Array.from({ length: count }, (_, i) => String(i));
  known.set(count, found);
  return found;
}
