/** One query, followed through scores, scale, mask, softmax, dropout and context. */

import { classOf } from "./colors.js";
import { weightChart } from "./chart.js";
import type { Attention, Node, Run } from "./data.js";
import { heading, label, labelText, make } from "./elements.js";
import { cellText, exactText } from "./numbers.js";
import { isWhole, labelsOf, largestOf, panelOf, type Panel, type Places } from "./panel.js";

/** Keys that a row has room for; of more, the ones with the largest weights are shown. */
const MOST_KEYS = 12;

type OnPoint = (node: number, index: readonly number[], chosen: boolean) => void;

export class Follow {
  readonly element: HTMLElement;
  private chosen = 0;

  constructor(private readonly name: string, private readonly level: number, private readonly onPoint: OnPoint) {
    this.element = make("div", { class: "follow", role: "group", "aria-label": `One query, followed: ${name}` });
  }

  update(run: Run, query: number, places: Places): void {
    const { attentions } = run;
    this.element.hidden = attentions.length === 0;
    if (attentions.length === 0) return;
    const attention = attentions[Math.min(this.chosen, attentions.length - 1)]!;
    const weights = panelOf(run.nodes[attention.weights]!, places);
    if (weights === null || weights.rowAxis !== "token" || query >= weights.rows || weights.rows < run.labels.length) {
      this.element.hidden = true;
      return;
    }
    const choice = attentions.length < 2 ? null : this.choice(run, query, places);
    const name = labelText(labelsOf("token", weights.rows, run.labels)[query]!);
    const keys = shownKeys(weights, query);
    this.element.replaceChildren(
      heading(this.level, {}, `The query of “${name}”, followed`), ...(choice === null ? [] : [choice]),
      this.table(run, attention, query, places, keys),
      chartOf(run, attention, query, places, keys, name),
      ...sentences(run, attention, query, places, keys.length < weights.columns ? weights.columns : 0),
    );
  }

  /** A menu of the attentions of the run, such as separate heads. */
  private choice(run: Run, query: number, places: Places): HTMLElement {
    const menu = make("select", { "aria-label": "Which attention" }, ...run.attentions.map((it, i) =>
      make("option", { value: i, selected: i === this.chosen }, it.title)));
    menu.addEventListener("change", () => {
      this.chosen = Number(menu.value);
      this.update(run, query, places);
      this.element.querySelector("select")?.focus();
    });
    return menu;
  }

  private table(run: Run, attention: Attention, query: number, places: Places, keys: readonly number[]): HTMLElement {
    const { scores, scaled, mask, masked, weights, dropped } = attention;
    const labels = labelsOf("key", panelOf(run.nodes[weights]!, places)!.columns, run.labels);
    const rows = [scores, scaled, mask, masked, weights, dropped].flatMap((at) => {
      const panel = at === null ? null : panelOf(run.nodes[at]!, places);
      if (at === null || panel === null) return [];
      const node = run.nodes[at]!;
      const cells = keys.map((key) => this.cell(at, panel, Math.min(query, panel.rows - 1), key));
      return [make("tr", {}, make("th", { scope: "row" }, make("code", {}, node.name)), ...cells)];
    });
    const head = make("tr", {}, make("td"), ...keys.map((key) => make("th", { scope: "col" }, label(labels[key]!))));
    const scrolled = { class: "matrix", role: "region", "aria-label": `The steps of the query: ${this.name}`, tabindex: 0 };
    return make("div", scrolled, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
  }

  private cell(node: number, panel: Panel, row: number, column: number): HTMLElement {
    const value = panel.value(row, column);
    const largest = largestOf(panel.tensor);
    const text = isWhole(panel.tensor) ? String(value) : cellText(value, largest);
    const cell = make("td", { class: `cell ${classOf(value, largest)}`, title: exactText(value) }, text);
    cell.addEventListener("mouseenter", () => { this.onPoint(node, panel.index(row, column), false); });
    return cell;
  }
}

function shownKeys(weights: Panel, query: number): number[] {
  const all = Array.from({ length: weights.columns }, (_, key) => key);
  if (all.length <= MOST_KEYS) return all;
  const largest = [...all].sort((one, other) => weights.value(query, other) - weights.value(query, one));
  return largest.slice(0, MOST_KEYS).sort((one, other) => one - other);
}

function chartOf(run: Run, attention: Attention, query: number, places: Places, keys: readonly number[], name: string): HTMLElement {
  const before = panelOf(run.nodes[attention.weights]!, places)!;
  const after = attention.dropped === null ? null : panelOf(run.nodes[attention.dropped]!, places);
  const labels = labelsOf("key", before.columns, run.labels);
  const drops = after !== null && keys.some((key) => after.value(query, key) !== before.value(query, key));
  const bars = keys.map((key) => ({
    label: labels[key]!,
    value: finite((drops ? after : before).value(query, key)),
    before: drops ? finite(before.value(query, key)) : null,
  }));
  const caption = drops
    ? `What “${name}” gathers from each key: its weights after dropout, and before it (dashed)`
    : `What “${name}” gathers from each key: its weights`;
  return weightChart(caption, bars);
}

function finite(value: number): number {
  return Number.isFinite(value) ? value : 0;
}

function sentences(
  run: Run, attention: Attention, query: number, places: Places, left: number,
): HTMLElement[] {
  const used: Node = run.nodes[attention.dropped ?? attention.weights]!;
  const panel = panelOf(used, places)!;
  const sum = Array.from({ length: panel.columns }, (_, key) => panel.value(query, key)).reduce((a, b) => a + b, 0);
  const total = `The ${used.name} of this query add up to ${exactText(sum)}.`;
  const more = left === 0 ? "" : ` Of ${left} keys, the ${MOST_KEYS} with the largest weights are shown.`;
  const context = attention.context === null ? null : panelOf(run.nodes[attention.context]!, places);
  const gathered = context === null || query >= context.rows || attention.values === null
    ? ""
    : ` Its ${run.nodes[attention.context!]!.name} is the sum of the ${run.nodes[attention.values]!.name}, each multiplied by its weight: ` +
      `[${Array.from({ length: Math.min(context.columns, 8) }, (_, j) => exactText(context.value(query, j))).join(", ")}${context.columns > 8 ? ", …" : ""}].`;
  return [make("p", {}, `${total}${more}${gathered}`)];
}
