/** The view "attention": all heads of a model, one head's map, and what a token attends to. */

import { heading, labelText, levelWithin, make, uniqueId } from "./elements.js";
import { HeadGrid } from "./head_grid.js";
import { sortedHeads, type HeadsContent, type Statistic } from "./heads.js";
import { HeadPanel } from "./head_panel.js";

export class HeadsView {
  private readonly grid: HeadGrid;
  private readonly panel: HeadPanel;
  private readonly statistics: readonly Statistic[];
  private readonly about = make("p", { class: "soft about" });
  private readonly hits = make("span", { role: "status" });
  private statistic: Statistic | null;
  private descending = true;
  private layer: number | null = null;

  /**
   * @param root The element that the view fills.
   * @param content Its data.
   * @param bytes The bytes of all arrays of the page.
   */
  constructor(root: HTMLElement, private readonly content: HeadsContent, bytes: ArrayBuffer) {
    const model = content.models[0]!;
    const level = levelWithin(root);
    this.statistics = [...(content.distances === null ? [] : [content.distances]), ...model.statistics];
    this.statistic = content.distances;
    this.panel = new HeadPanel(content, bytes, level);
    this.grid = new HeadGrid(model, (place) => { void this.panel.show(place); });
    const heads = make("section", { class: "all-heads" }, heading(level, {}, this.count()), this.controls(), this.about, this.grid.element);
    root.replaceChildren(this.search(), heads, this.panel.element,
      make("div", { class: "notes soft" }, ...content.notes.map((note) => make("p", {}, note))));
    this.order();
    const first = sortedHeads(model, this.statistic, true, null)[0]!;
    this.grid.choose(first);
    void this.panel.show(first);
  }

  private count(): string {
    const { layers } = this.content.models[0]!;
    const heads = layers.reduce((total, it) => total + it.heads.length, 0);
    const plural = (count: number, noun: string) => `${count} ${noun}${count === 1 ? "" : "s"}`;
    return `${plural(heads, "head")} of ${plural(layers.length, "layer")}`;
  }

  private controls(): HTMLElement {
    const { layers } = this.content.models[0]!;
    const sort = select(["layer and head", ...this.statistics.map((it) => it.name)],
      this.statistic === null ? 0 : this.statistics.indexOf(this.statistic) + 1, (at) => {
        this.statistic = at === 0 ? null : this.statistics[at - 1]!;
        this.order();
      });
    const direction = select(["highest first", "lowest first"], 0, (at) => {
      this.descending = at === 0;
      this.order();
    });
    direction.setAttribute("aria-label", "Order");
    const filter = select(["all", ...layers.map((it) => it.short)], 0, (at) => {
      this.layer = at === 0 ? null : at - 1;
      this.order();
    });
    return make("div", { class: "controls" }, labelled("Sort by", sort), direction,
      ...(layers.length > 1 ? [labelled("Layer", filter)] : []));
  }

  private order(): void {
    const places = sortedHeads(this.content.models[0]!, this.statistic, this.descending, this.layer);
    this.about.textContent = this.statistic?.about ?? "Each small map is a head: queries from top to bottom, keys from left to right.";
    this.grid.show(places, this.statistic, this.statistic === null);
  }

  private search(): HTMLElement {
    const field = make("input", { type: "search", id: uniqueId("search"), spellcheck: "false", autocomplete: "off" });
    const step = (text: string, name: string, by: number) => {
      const button = make("button", { type: "button", "aria-label": name, title: name }, text);
      button.addEventListener("click", () => { this.next(field.value, by); });
      return button;
    };
    field.addEventListener("input", () => {
      const { length } = this.panel.find(field.value);
      this.hits.textContent = field.value === "" ? "" : `${length} found`;
    });
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.next(field.value, event.shiftKey ? -1 : 1);
    });
    return make("div", { class: "controls search", role: "search", "aria-label": this.content.models[0]!.title }, make("label", { for: field.id }, "Find a token"),
      make("span", { class: "field" }, field, step("↑", "Previous match", -1), step("↓", "Next match", 1)), this.hits);
  }

  /** Go to the next match in the text that is shown now. */
  private next(wanted: string, by: number): void {
    const matches = this.panel.find(wanted);
    if (matches.length === 0) return;
    const { token } = this.panel;
    const next = by > 0 ? matches.find((it) => it > token) : matches.filter((it) => it < token).at(-1);
    const to = next ?? (by > 0 ? matches[0]! : matches.at(-1)!);
    this.hits.textContent = `${matches.indexOf(to) + 1} of ${matches.length}`;
    this.panel.chooseToken(to);
  }
}

export function select(options: readonly string[], at: number, onChange: (at: number) => void): HTMLSelectElement {
  const menu = make("select", { id: uniqueId("choice") }, ...options.map((text, i) =>
    make("option", { value: i, selected: i === at }, labelText(text))));
  menu.addEventListener("change", () => { onChange(Number(menu.value)); });
  return menu;
}

export function labelled(text: string, field: HTMLElement): HTMLElement {
  return make("span", { class: "choice" }, make("label", { for: field.id }, `${text} `), field);
}

