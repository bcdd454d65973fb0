/** The view "steps": the nodes of a run as cards, beside the code that made them; or two runs side by side. */

import { Card } from "./card.js";
import { type Node, type Run, entry, sizeOf } from "./data.js";
import { detailOf, entryName, operandsOf } from "./detail.js";
import { heading, labelText, levelWithin, make, uniqueId } from "./elements.js";
import { explain } from "./explain.js";
import { Follow } from "./follow.js";
import { exactText } from "./numbers.js";

export class StepsView {
  private runs: readonly Run[];
  private cards: Card[][] = [];
  private readonly follows: Follow[];
  private readonly detail = make("div", { class: "detail", role: "group", "aria-label": "How a number is made" });
  private readonly listings = make("div", { class: "listings" });
  private readonly controls = make("div", { class: "controls" });
  private readonly main = make("div", { class: "main" });
  private readonly places = { batch: 0, head: 0 };
  private readonly level: number;
  private query = 0;
  private last: { node: number; index: readonly number[] } | null = null;

  /**
   * @param root The element that the view fills. The code listings that it has already come first.
   * @param runs One run, or two to compare.
   */
  constructor(private readonly root: HTMLElement, runs: readonly Run[]) {
    this.runs = runs;
    this.level = levelWithin(root);
    this.query = Math.min(1, runs[0]!.labels.length - 1);
    this.listings.append(...root.querySelectorAll(":scope > .listing"));
    this.follows = runs.map((run, r) => new Follow(run.title, this.level, (node, index, chosen) => {
      this.explainEntry(node, index, r, chosen);
    }));
    root.classList.toggle("two", runs.length > 1);
    root.replaceChildren(this.controls, make("div", { class: "side" }, this.listings, this.detail), this.main);
    this.listings.hidden = this.listings.childElementCount === 0;
    this.build();
    this.linkLines();
  }

  /** Show other values of the same nodes; if the nodes are others, build the cards anew. */
  update(runs: readonly Run[]): void {
    const same = runs.every((run, r) => sameNodes(run, this.runs[r]!));
    this.runs = runs;
    if (same) this.refresh();
    else this.build();
    this.linkLines();
  }

  private build(): void {
    this.cards = this.runs.map((run) => run.nodes.flatMap((node, i) =>
      node.shown && node.tensor !== null ? [new Card(this, run, i, this.places, this.level)] : []));
    for (const card of this.cards.flat()) {
      for (const event of ["mouseenter", "focusin"]) {
        card.element.addEventListener(event, () => { this.light(card.data.line); });
      }
    }
    this.last = null;
    this.buildControls();
    const hint = make("p", { class: "soft hint" },
      "Point at a number, or reach it with Tab and the arrow keys: here you see what made it.");
    this.detail.replaceChildren(heading(this.level, {}, "How a number is made"), hint);
    if (this.runs.length === 1) {
      this.main.replaceChildren(this.follows[0]!.element, make("div", { class: "cards" }, ...this.cards[0]!.map((card) => card.element)));
    } else {
      this.main.replaceChildren(this.pairs());
    }
    this.refresh();
  }

  /** Two runs in two columns: cards of the same role or name stand beside each other, with their difference. */
  private pairs(): HTMLElement {
    const [left, right] = this.cards as [Card[], Card[]];
    const waiting = [...right];
    const grid = make("div", { class: "pairs" },
      ...this.runs.map((run) => heading(this.level, {}, run.title)), ...this.follows.map((it) => it.element));
    for (const card of left) {
      const at = waiting.findIndex((other) => keyOf(other.data) === keyOf(card.data));
      const partner = at < 0 ? null : waiting[at]!;
      if (partner === null) {
        grid.append(card.element, make("p", { class: "soft none" }, "This step has no counterpart."));
        continue;
      }
      for (const other of waiting.splice(0, at)) grid.append(make("p", { class: "soft none" }, "This step has no counterpart."), other.element);
      waiting.shift();
      partner.element.append(make("p", { class: "difference" }, differenceText(card.data, partner.data)));
      grid.append(card.element, partner.element);
    }
    for (const other of waiting) grid.append(make("p", { class: "soft none" }, "This step has no counterpart."), other.element);
    return grid;
  }

  private buildControls(): void {
    const run = this.runs[0]!;
    const select = (name: string, options: readonly string[], at: number, onChange: (place: number) => void) => {
      const id = uniqueId("choice");
      const menu = make("select", { id }, ...options.map((text, i) =>
        make("option", { value: i, selected: i === at }, labelText(text))));
      menu.addEventListener("change", () => {
        onChange(Number(menu.value));
        this.refresh();
      });
      return make("label", { for: id }, `${name} `, menu);
    };
    const numbered = (name: string, count: number) => Array.from({ length: count }, (_, i) => `${name} ${i}`);
    const [batch, heads] = [this.count("batch"), this.count("head")];
    this.controls.replaceChildren(
      ...(run.attentions.length > 0 && run.labels.length > 1
        ? [select("Follow the query of", run.labels, this.query, (place) => { this.query = place; })] : []),
      ...(heads > 1 ? [select("in", numbered("head", heads), this.places.head, (place) => { this.places.head = place; })] : []),
      ...(batch > 1 ? [select("of", numbered("sequence", batch), this.places.batch, (place) => { this.places.batch = place; })] : []),
    );
  }

  private count(axis: "batch" | "head"): number {
    const sizes = this.runs.flatMap((run) => run.nodes.flatMap((node) =>
      node.tensor === null ? [] : node.axes.map((it, i) => (it === axis ? node.tensor!.shape[i]! : 1))));
    return Math.max(1, ...sizes);
  }

  private refresh(): void {
    this.cards.forEach((cards, r) => { for (const card of cards) card.update(this.runs[r]!, this.places); });
    this.follows.forEach((follow, r) => { follow.update(this.runs[r]!, this.query, this.places); });
    if (this.last !== null) this.explainEntry(this.last.node, this.last.index, 0, false);
  }

  /** Called by a card whose entry the reader points at. */
  point(card: Card, index: readonly number[], chosen: boolean): void {
    const run = this.cards.findIndex((cards) => cards.includes(card));
    const axis = card.data.axes.indexOf("token");
    if (chosen && axis >= 0) this.followQuery(index[axis]!);
    this.explainEntry(card.node, index, run, chosen);
    this.light(card.data.line);
  }

  private followQuery(query: number): void {
    this.query = query;
    const menu = this.controls.querySelector("select");
    if (menu !== null) menu.value = String(query);
    this.follows.forEach((follow, r) => { follow.update(this.runs[r]!, this.query, this.places); });
  }

  private explainEntry(nodeAt: number, index: readonly number[], runAt: number, chosen: boolean): void {
    const run = this.runs[runAt]!;
    const node = run.nodes[nodeAt]!;
    if (chosen || runAt === 0) this.last = this.runs.length === 1 ? { node: nodeAt, index } : null;
    const value = entry(node.tensor!, index);
    const explanation = explain(run, nodeAt, index);
    this.detail.replaceChildren(heading(this.level, {}, "How a number is made"), ...detailOf(run, node, index, value, explanation),
      ...this.others(node, index, runAt));
    const operands = explanation === null ? [] : operandsOf(explanation);
    for (const [r, cards] of this.cards.entries()) {
      for (const card of cards) {
        const marks = r === runAt ? operands.filter((it) => it.node === card.node).map((it) => it.index) : [];
        card.mark(r === runAt && card.node === nodeAt ? [...marks, index] : marks);
      }
    }
  }

  /** The same entry of the other run, if there is one. */
  private others(node: Node, index: readonly number[], runAt: number): HTMLElement[] {
    if (this.runs.length === 1) return [];
    const other = this.runs[1 - runAt]!;
    const partner = other.nodes.find((it) => it.shown && keyOf(it) === keyOf(node) && sameShape(it, node));
    if (partner === undefined) return [];
    return [make("p", { class: "soft" }, `${labelText(other.title)}: `, make("code", {}, entryName(other, partner, index)),
      ` = ${exactText(entry(partner.tensor!, index))}`)];
  }

  /** Light the line of a card, and the cards of a line, whether the reader points or moves the focus. */
  private linkLines(): void {
    const lines = new Set(this.cards.flat().map((card) => card.data.line));
    for (const line of this.listings.querySelectorAll<HTMLElement>("[data-line]")) {
      if (!lines.has(line.id)) continue;
      const cards = this.cards.flat().filter((card) => card.data.line === line.id);
      line.tabIndex = 0;
      line.setAttribute("role", "button");
      const show = () => {
        this.light(line.id);
        for (const card of this.cards.flat()) card.element.classList.toggle("lit", cards.includes(card));
      };
      line.addEventListener("mouseenter", show);
      line.addEventListener("focus", show);
      const go = () => { cards[0]!.element.scrollIntoView({ block: "nearest" }); };
      line.addEventListener("click", go);
      line.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        go();
        cards[0]!.element.querySelector<HTMLElement>("[tabindex='0']")?.focus();
      });
    }
  }

  private light(line: string | null): void {
    for (const lit of this.root.querySelectorAll(".listing .lit")) lit.classList.remove("lit");
    for (const card of this.cards.flat()) card.element.classList.toggle("lit", line !== null && card.data.line === line);
    const element = line === null ? null : document.getElementById(line);
    if (element === null) return;
    element.classList.add("lit");
    const listing = element.closest<HTMLElement>(".listings")!;
    const place = element.offsetTop - listing.offsetTop;
    const hidden = place < listing.scrollTop || place > listing.scrollTop + listing.clientHeight - 30;
    if (hidden) listing.scrollTop = place - listing.clientHeight / 2;
  }
}

function keyOf(node: Node): string {
  return node.role ?? node.name;
}

function sameShape(one: Node, other: Node): boolean {
  return one.tensor !== null && other.tensor !== null && one.tensor.shape.join() === other.tensor.shape.join();
}

function sameNodes(one: Run, other: Run): boolean {
  return one.nodes.length === other.nodes.length && one.labels.join("\n") === other.labels.join("\n") &&
    one.nodes.every((node, i) => {
      const it = other.nodes[i]!;
      return node.name === it.name && node.shape.join() === it.shape.join() && node.shown === it.shown &&
        node.rule?.kind === it.rule?.kind && node.axes.join() === it.axes.join() && node.notes.join() === it.notes.join();
    });
}

function differenceText(one: Node, other: Node): string {
  if (!sameShape(one, other)) return "The shapes differ.";
  const [left, right] = [one.tensor!, other.tensor!];
  let largest = 0;
  for (let i = 0; i < sizeOf(left.shape); i++) {
    const [a, b] = [left.values[i]!, right.values[i]!];
    if (a === b || (Number.isNaN(a) && Number.isNaN(b))) continue;
    largest = Math.max(largest, Math.abs(a - b));
    if (Number.isNaN(a - b)) largest = Infinity;
  }
  return largest === 0 ? "Equal to the left one, bit for bit." : `Differs from the left one by up to ${largest < 1e-3 ? largest.toExponential(1).replace("-", "−") : exactText(largest)}.`;
}
