/** The text, token by token, colored by a number of each token. */

import { labelText, make } from "./elements.js";
import { tintOf } from "./heatmap.js";
import { exactText } from "./numbers.js";

const PER_PAGE = 512;

export class TokenText {
  readonly element: HTMLElement;
  private readonly list: HTMLElement;
  private readonly pages = make("p", { class: "pages controls" });
  private tokens: HTMLElement[] = [];
  private labels: readonly string[] = [];
  private first = 0;
  private chosen = 0;
  private marked = new Set<number>();
  private value: ((token: number) => number) | null = null;
  private limit = 0;

  constructor(name: string, private readonly onChoose: (token: number) => void) {
    this.list = make("div", { class: "tokens-of-text", role: "listbox", "aria-label": name, "aria-orientation": "horizontal" });
    this.element = make("div", { class: "text" }, this.list, this.pages);
    this.list.addEventListener("keydown", (event) => { this.onKey(event); });
    this.list.addEventListener("click", (event) => {
      const at = this.tokens.indexOf((event.target as HTMLElement).closest<HTMLElement>("[role=option]")!);
      if (at >= 0) this.go(this.first + at);
    });
    this.list.addEventListener("focusin", (event) => {
      const at = this.tokens.indexOf(event.target as HTMLElement);
      if (at >= 0 && this.first + at !== this.chosen) this.onChoose(this.first + at);
    });
  }

  show(labels: readonly string[]): void {
    if (this.labels === labels) return;
    this.labels = labels;
    const written = labels.some((it) => /^\s|\s$/.test(it)); // the tokens have the spaces between words
    this.list.classList.toggle("spaced", !written);
    this.build(0);
  }

  /** Color each token by its value. */
  color(value: ((token: number) => number) | null, limit: number): void {
    this.value = value;
    this.limit = limit;
    this.tokens.forEach((_, i) => { this.paint(i); });
  }

  /** Mark tokens that were searched for. */
  mark(tokens: readonly number[]): void {
    this.marked = new Set(tokens);
    this.tokens.forEach((_, i) => { this.paint(i); });
  }

  choose(token: number): void {
    const before = this.chosen - this.first;
    this.chosen = token;
    const first = Math.floor(token / PER_PAGE) * PER_PAGE;
    if (first !== this.first) this.build(first);
    for (const at of [before, token - this.first]) {
      const element = this.tokens[at];
      if (element === undefined) continue;
      element.setAttribute("aria-selected", String(at === token - this.first));
      element.tabIndex = at === token - this.first ? 0 : -1;
    }
    this.bringIntoSight(token);
  }

  /** Scroll the text, but not the page. */
  private bringIntoSight(token: number): void {
    const element = this.tokens[token - this.first];
    if (element === undefined) return;
    const { list } = this;
    const above = element.offsetTop < list.scrollTop;
    const below = element.offsetTop + element.offsetHeight > list.scrollTop + list.clientHeight;
    if (above || below) list.scrollTop = element.offsetTop - list.clientHeight / 2;
  }

  private build(first: number): void {
    this.first = first;
    const last = Math.min(this.labels.length, first + PER_PAGE);
    const parts: (HTMLElement | string)[] = [];
    this.tokens = this.labels.slice(first, last).map((text, i) => {
      const token = make("span", { role: "option", tabindex: first + i === this.chosen ? 0 : -1, "aria-selected": String(first + i === this.chosen) },
        make("bdi", {}, labelText(text)));
      parts.push(token);
      if (/\n/.test(text)) parts.push(make("br", { role: "presentation" }));
      return token;
    });
    if (!this.tokens.some((it) => it.tabIndex === 0)) this.tokens[0]!.tabIndex = 0;
    this.list.replaceChildren(...parts);
    this.tokens.forEach((_, i) => { this.paint(i); });
    const turn = (text: string, to: number) => {
      const button = make("button", { type: "button", disabled: to < 0 || to >= this.labels.length }, text);
      button.addEventListener("click", () => { this.build(to); });
      return button;
    };
    this.pages.hidden = this.labels.length <= PER_PAGE;
    this.pages.replaceChildren(turn("← Earlier tokens", first - PER_PAGE),
      `tokens ${first} – ${last - 1} of ${this.labels.length}`, turn("Later tokens →", first + PER_PAGE));
  }

  private paint(at: number): void {
    const token = this.first + at;
    const element = this.tokens[at]!;
    const value = this.value === null ? NaN : this.value(token);
    element.className = `${Number.isFinite(value) ? tintOf(value, this.limit) : ""}${this.marked.has(token) ? " found" : ""}`;
    element.title = `token ${token}${Number.isFinite(value) ? `: ${exactText(value)}` : ""}`;
  }

  private go(token: number): void {
    this.onChoose(token);
    this.tokens[token - this.first]?.focus({ preventScroll: true });
  }

  private onKey(event: KeyboardEvent): void {
    const steps: Readonly<Record<string, number>> = {
      ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, PageUp: -PER_PAGE, PageDown: PER_PAGE, Home: -Infinity, End: Infinity,
    };
    const step = steps[event.key];
    if (step === undefined && event.key !== "Enter") return;
    event.preventDefault();
    this.go(Math.max(0, Math.min(this.labels.length - 1, this.chosen + (step ?? 0))));
  }
}
