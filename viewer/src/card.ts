/** A card: one node of a run, with its formula, why it is there, and its map. */

import { isWholeValue, type Node, type Run } from "./data.js";
import { heading, make, uniqueId } from "./elements.js";
import { formulaOf, reasonOf } from "./formulas.js";
import { colorLimit } from "./heads.js";
import { cellText } from "./numbers.js";
import { matrixOf, type Matrix, TABLE_LIMIT, type Values } from "./matrix.js";
import { isWhole, labelsOf, largestOf, panelOf, type Panel, type Places } from "./panel.js";

export class Card {
  readonly element: HTMLElement;
  panel: Panel | null = null;
  private matrix: Matrix | null = null;
  private readonly scale = make("p", { class: "scale soft" });
  private readonly place = make("div");
  private readonly formula = make("code");

  constructor(
    private readonly view: { point(card: Card, index: readonly number[], chosen: boolean): void },
    public run: Run,
    readonly node: number,
    places: Places,
    level: number,
  ) {
    const it = run.nodes[node]!;
    const id = uniqueId("card");
    const reason = reasonOf(it.role) || it.about;
    const title = it.module === "" ? it.name : `${it.module} ${it.name}`;
    this.element = make("article", { class: "card", "aria-labelledby": id, "data-line": it.line },
      heading(level, { id }, make("code", {}, title), " ", make("small", {}, it.shape.join(" × ") || "a number")),
      formulaOf(run, it) === "" ? null : make("p", { class: "formula" }, this.formula),
      reason === "" ? null : make("p", {}, reason),
      ...it.notes.map((note) => make("p", { class: "soft" }, note)),
      it.unused ? make("p", { class: "warning" }, "Nothing uses this result.") : null,
      this.place, this.scale);
    this.update(run, places);
  }

  get data(): Node {
    return this.run.nodes[this.node]!;
  }

  /** Draw the values of another run of the same nodes, or another place of the same run. */
  update(run: Run, places: Places): void {
    const before = this.panel;
    this.run = run;
    const { data } = this;
    this.formula.textContent = formulaOf(run, data);
    this.panel = panelOf(data, places);
    if (this.panel === null) return;
    this.element.style.setProperty("--columns", String(Math.min(this.panel.columns, TABLE_LIMIT)));
    const values = valuesOf(run, data, this.panel);
    const fits = this.matrix !== null && before !== null &&
      before.rows === this.panel.rows && before.columns === this.panel.columns;
    if (fits) {
      this.matrix!.update(values);
    } else {
      this.matrix = matrixOf(data.name, values, (row, column, chosen) => {
        this.view.point(this, this.panel!.index(row, column), chosen);
      });
      this.place.replaceChildren(this.matrix.element);
    }
    const { largest } = values;
    this.scale.replaceChildren(...(values.whole ? [] : scaleOf(largest, hasNegative(this.panel), isWholeValue(data))));
  }

  /** Mark the entries that this card shows among those of its node. */
  mark(indices: readonly (readonly number[])[]): void {
    if (this.panel === null) return;
    const { cell } = this.panel;
    this.matrix?.mark(indices.flatMap((index) => {
      const at = cell(index);
      return at === null ? [] : [at];
    }));
  }
}

export function valuesOf(run: Run, node: Node, panel: Panel): Values {
  const { tensor, rows, columns, rowAxis, columnAxis, value } = panel;
  const single = node.tensor!.shape.length < 2;
  return {
    rows: single ? [""] : labelsOf(rowAxis, rows, run.labels),
    columns: labelsOf(columnAxis, columns, run.labels),
    value,
    // Of a map of means, a few blocks may be far larger than all others, which would come out white.
    largest: isWholeValue(node) ? largestOf(tensor) : colorLimit(tensor.values, false),
    whole: isWhole(tensor),
  };
}

function hasNegative(panel: Panel): boolean {
  return Array.from(panel.tensor.values).some((value) => value < 0 && Number.isFinite(value));
}

function scaleOf(largest: number, negative: boolean, whole: boolean): (HTMLElement | string)[] {
  const end = cellText(largest, largest);
  const low = negative ? `−${end}` : "0";
  return [low, make("span", { class: negative ? "bar both" : "bar" }), whole ? end : `${end}; 99 % of the blocks are smaller`];
}
