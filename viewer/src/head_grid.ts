/** The grid of all heads: a small map for each, in the order of layers or of a statistic. */

import { colorOf, LEVELS, onThemeChange, themeNow } from "./colors.js";
import { labelText, make } from "./elements.js";
import type { Model, Place, Statistic } from "./heads.js";
import { threeDigits } from "./numbers.js";

export class HeadGrid {
  readonly element = make("div", { class: "grid", role: "listbox", "aria-label": "Heads" });
  private readonly canvases = new Map<string, HTMLCanvasElement>();
  private options: HTMLElement[] = [];
  private places: readonly Place[] = [];
  private chosen: Place = { layer: 0, head: 0 };

  constructor(private readonly model: Model, private readonly onChoose: (place: Place) => void) {
    this.element.addEventListener("keydown", (event) => { this.onKey(event); });
    onThemeChange(() => { for (const place of this.places) this.paint(place); });
  }

  /**
   * Show heads in an order.
   *
   * @param places The heads.
   * @param statistic What they are sorted by, whose numbers stand below the maps; null for the order of layers.
   * @param layered Whether each layer has a row of its own.
   */
  show(places: readonly Place[], statistic: Statistic | null, layered: boolean): void {
    this.places = places;
    this.options = places.map((place) => this.option(place, statistic));
    const most = Math.max(...this.model.layers.map((it) => it.heads.length));
    this.element.style.setProperty("--heads", String(most));
    this.element.classList.toggle("layered", layered);
    const caption = (text: string, kind: string) => make("span", { class: `${kind} soft`, role: "presentation" }, text);
    const numbers = layered ? [caption("", "layer"), ...Array.from({ length: most }, (_, head) => caption(String(head), "number"))] : [];
    const rows = !layered ? this.options : places.flatMap((place, i) => (place.head > 0 ? [this.options[i]!]
      : [caption(labelText(this.model.layers[place.layer]!.short), "layer"), this.options[i]!]));
    this.element.replaceChildren(...numbers, ...rows);
    this.choose(this.chosen);
  }

  choose(place: Place): void {
    this.chosen = place;
    const at = this.places.findIndex((it) => it.layer === place.layer && it.head === place.head);
    this.options.forEach((option, i) => {
      option.setAttribute("aria-selected", String(i === at));
      option.tabIndex = i === Math.max(0, at) ? 0 : -1;
    });
  }

  private option(place: Place, statistic: Statistic | null): HTMLElement {
    const name = headName(this.model, place);
    const value = statistic === null ? null : statistic.values[place.layer]![place.head]!;
    const text = value === null ? "" : threeDigits(value);
    const title = statistic === null || value === null ? name : `${name}, ${statistic.name} ${text}`;
    const option = make("div", { role: "option", class: "head", "aria-label": title, title },
      this.paint(place), make("span", { class: "name", "aria-hidden": "true" },
        ...(statistic === null ? [String(place.head)] : [shortName(this.model, place), make("strong", {}, text)])));
    option.addEventListener("click", () => { this.go(place, option); });
    return option;
  }

  private go(place: Place, option: HTMLElement): void {
    this.choose(place);
    option.focus({ preventScroll: true });
    this.onChoose(place);
  }

  private onKey(event: KeyboardEvent): void {
    const at = this.options.findIndex((it) => it === document.activeElement);
    if (at < 0) return;
    const next = this.neighbor(event.key, at);
    if (next === null) return;
    event.preventDefault();
    const option = this.options[Math.max(0, Math.min(this.options.length - 1, next))]!;
    option.scrollIntoView({ block: "nearest" });
    this.go(this.places[this.options.indexOf(option)]!, option);
  }

  private neighbor(key: string, at: number): number | null {
    switch (key) {
      case "ArrowRight": return at + 1;
      case "ArrowLeft": return at - 1;
      case "ArrowDown": return this.below(at, 1);
      case "ArrowUp": return this.below(at, -1);
      case "Home": return 0;
      case "End": return this.options.length - 1;
      case "Enter":
      case " ": return at;
      default: return null;
    }
  }

  /** The option of the next line that stands at the same place. */
  private below(at: number, direction: number): number {
    const here = this.options[at]!.offsetLeft;
    const line = this.options[at]!.offsetTop;
    for (let i = at + direction; i >= 0 && i < this.options.length; i += direction) {
      const option = this.options[i]!;
      if (option.offsetTop !== line && option.offsetLeft === here) return i;
    }
    return at;
  }

  private paint(place: Place): HTMLCanvasElement {
    const id = `${place.layer}.${place.head}`;
    const canvas = this.canvases.get(id) ?? make("canvas");
    this.canvases.set(id, canvas);
    const { overview } = this.model.layers[place.layer]!;
    if (overview === null) return canvas;
    const [, rows, columns] = overview.shape as [number, number, number];
    const theme = themeNow();
    const image = new ImageData(columns, rows);
    const palette = Array.from({ length: LEVELS + 1 }, (_, level) => colorOf(level, theme));
    for (let i = 0; i < rows * columns; i++) {
      const level = Math.round((overview.values[place.head * rows * columns + i]! / 255) * LEVELS);
      image.data.set([...palette[level]!, 255], 4 * i);
    }
    canvas.width = columns;
    canvas.height = rows;
    canvas.getContext("2d")!.putImageData(image, 0, 0);
    return canvas;
  }
}

export function headName(model: Model, place: Place): string {
  const { name } = model.layers[place.layer]!;
  return name === "" ? `head ${place.head}` : `${labelText(name)}, head ${place.head}`;
}

export function shortName(model: Model, place: Place): string {
  return `${labelText(model.layers[place.layer]!.short)}·${place.head}`;
}
