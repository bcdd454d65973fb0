/** The panel that says how one number was made. */

import type { Node, Run } from "./data.js";
import type { Explanation, Operand } from "./explain.js";
import { label, labelText, make } from "./elements.js";
import { exactText, shortText } from "./numbers.js";
import { labelsOf } from "./panel.js";

/** Terms of a sum that are listed; the rest is added up. */
const LISTED = 12;

/** The name of an entry, such as "scores[journey, step]". */
export function entryName(run: Run, node: Node, index: readonly number[]): string {
  const { shape } = node.tensor!;
  const places = index.flatMap((at, axis) => {
    const kind = node.axes[axis] ?? "";
    if (shape[axis] === 1 && axis < shape.length - 2) return [];
    const text = labelText(labelsOf(kind, shape[axis]!, run.labels)[at]!);
    return [kind === "head" || kind === "batch" ? `${kind} ${text}` : text];
  });
  return `${node.name}[${places.join(", ")}]`;
}

/** The parts of an explanation that other maps mark. */
export function operandsOf(explanation: Explanation): Operand[] {
  switch (explanation.kind) {
    case "product":
      return explanation.terms.flatMap((term) => [term.left, term.right]).concat(explanation.bias ?? []);
    case "softmax":
      return explanation.entries.map((it) => it.of);
    case "mask":
      return [explanation.of, explanation.mask];
    case "combine":
      return [...explanation.terms];
    case "reduce":
      return [...explanation.entries];
    default:
      return [explanation.of];
  }
}

export function detailOf(
  run: Run, node: Node, index: readonly number[], value: number, explanation: Explanation | null,
): HTMLElement[] {
  const heading = make("p", { class: "entry", "aria-live": "polite" },
    make("code", {}, entryName(run, node, index)), " = ", make("strong", {}, exactText(value)));
  return explanation === null
    ? [heading, make("p", {}, origin(node))]
    : [heading, ...explained(run, value, explanation)];
}

function origin(node: Node): string {
  const kinds: Partial<Record<Node["kind"], string>> = {
    input: "It was given to the call.",
    parameter: "It is a parameter of the module, which training changes.",
    buffer: "It is a buffer of the module.",
  };
  return kinds[node.kind] ?? (node.operation === "" ? "" : `The operation ${node.operation} made it.`);
}

function explained(run: Run, value: number, explanation: Explanation): HTMLElement[] {
  const name = (part: Operand) => entryName(run, run.nodes[part.node]!, part.index);
  switch (explanation.kind) {
    case "product":
      return product(run, value, explanation, name);
    case "scale": {
      const { of, by, divides } = explanation;
      return [line(`${name(of)} ${divides ? "/" : "·"} ${shortText(by)}`,
        `${exactText(of.value)} ${divides ? "/" : "·"} ${shortText(by)} = ${exactText(value)}`)];
    }
    case "mask": {
      const { of, mask, kept, fill } = explanation;
      const [first, second] = kept
        ? ["The query may see this key: the score stays.", `${name(of)} = ${exactText(of.value)}`]
        : [`The query must not see this key: ${exactText(fill)} takes the place of the score.`,
           `${name(of)} was ${exactText(of.value)}`];
      return [make("p", {}, first), line(name(mask), exactText(mask.value)), make("p", {}, second)];
    }
    case "softmax":
      return softmax(run, explanation, value);
    case "dropout": {
      const { of, p, kept } = explanation;
      if (p === 0) return [make("p", {}, "Nothing is dropped: p is 0, or the module is in evaluation mode.")];
      return kept
        ? [line(`${name(of)} / (1 − ${shortText(p)})`, `${exactText(of.value)} / ${shortText(1 - p)} = ${exactText(value)}`)]
        : [make("p", {}, `Dropped: ${name(of)} was ${exactText(of.value)}.`)];
    }
    case "combine": {
      const { terms, operator } = explanation;
      const join = (texts: readonly string[]) => texts.join(` ${operator} `);
      return [line(join(terms.map(name)), `${join(terms.map((term) => exactText(term.value)))} = ${exactText(value)}`)];
    }
    case "exp":
      return [line(`exp(${name(explanation.of)})`, `exp(${exactText(explanation.of.value)}) = ${exactText(value)}`)];
    case "reduce": {
      const rows = explanation.entries.slice(0, LISTED).map((it) => [name(it), exactText(it.value)]);
      const more = explanation.entries.length - rows.length;
      if (more > 0) rows.push([`and ${more} more`, ""]);
      return [table(["", "value"], rows, [explanation.operator === "sum" ? "sum" : "largest", exactText(value)])];
    }
    case "move":
      return [line(name(explanation.of), "the same number, in its new place")];
  }
}

function line(left: string, right: string): HTMLElement {
  return make("p", {}, make("code", {}, left), make("br"), right);
}

function product(
  run: Run, value: number, explanation: Explanation & { kind: "product" }, name: (part: Operand) => string,
): HTMLElement[] {
  const { terms, bias } = explanation;
  const first = terms[0]!;
  const [left, right] = [run.nodes[first.left.node]!, run.nodes[first.right.node]!];
  const along = innerLabels(run, explanation);
  const rows = terms.slice(0, LISTED).map((term, k) => [
    along[k]!, exactText(term.left.value), exactText(term.right.value), exactText(term.product),
  ]);
  const rest = terms.slice(LISTED);
  if (rest.length > 0) {
    const sum = rest.reduce((total, term) => total + term.product, 0);
    rows.push([`${rest.length} more`, "", "", exactText(sum)]);
  }
  if (bias !== null) rows.push([name(bias), "", "", exactText(bias.value)]);
  return [table(["", left.name, right.name, "product"], rows, ["sum", "", "", exactText(value)])];
}

/** The labels of the axis that a product sums over: tokens, or numbers. */
function innerLabels(run: Run, explanation: Explanation & { kind: "product" }): readonly string[] {
  const { terms } = explanation;
  const [first, second] = [terms[0]!, terms[1]];
  if (second === undefined) return ["0"];
  const node = run.nodes[first.left.node]!;
  const axis = first.left.index.findIndex((at, i) => at !== second.left.index[i]);
  return labelsOf(node.axes[axis] ?? "", terms.length, run.labels);
}

function softmax(run: Run, explanation: Explanation & { kind: "softmax" }, value: number): HTMLElement[] {
  const { entries, at, largest, total } = explanation;
  const node = run.nodes[entries[0]!.of.node]!;
  const axis = entries[0]!.of.index.findIndex((it, i) => entries.some((other) => other.of.index[i] !== it));
  const labels = labelsOf(node.axes[axis] ?? "", entries.length, run.labels);
  const from = Math.max(0, Math.min(at - LISTED / 2, entries.length - LISTED));
  const rows = entries.slice(from, from + LISTED).map((it, k) => ({
    cells: [labels[from + k]!, exactText(it.of.value), exactText(it.exponential), exactText(it.exponential / total)],
    marked: from + k === at,
  }));
  const intro = `The largest is ${exactText(largest)}. It is subtracted first, so that exp cannot overflow; that changes no weight.`;
  return [
    table(["", node.name, "exp(it − largest)", "share"], rows.map((row) => row.cells), ["sum", "", exactText(total), "1"],
      rows.findIndex((row) => row.marked)),
    make("p", {}, `${exactText(entries[at]!.exponential)} / ${exactText(total)} = ${exactText(value)}`),
    make("p", { class: "soft" }, intro),
  ];
}

function table(head: readonly string[], rows: readonly (readonly string[])[], foot: readonly string[], marked = -1): HTMLElement {
  const cells = (tag: "th" | "td", row: readonly string[]) =>
    row.map((text, i) => make(i === 0 ? "th" : tag, i === 0 ? { scope: "row" } : {}, text === "" ? "" : label(text)));
  return make("div", { class: "terms" }, make("table", {},
    make("thead", {}, make("tr", {}, ...head.map((text, i) => i === 0 && text === "" ? make("td") : make("th", { scope: "col" }, label(text))))),
    make("tbody", {}, ...rows.map((row, i) => make("tr", { class: i === marked ? "here" : null }, ...cells("td", row)))),
    make("tfoot", {}, make("tr", {}, ...cells("td", foot)))));
}
