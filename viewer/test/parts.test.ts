import assert from "node:assert/strict";
import { test } from "node:test";
import { classOf, colorOf, inkOn, LEVELS, levelOf } from "../src/colors.js";
import { broadcastEntry, bytesOf, entry, indexOf, type Node, positionOf, unpacked } from "../src/data.js";
import { labelText } from "../src/elements.js";
import { explain } from "../src/explain.js";
import { formulaOf } from "../src/formulas.js";
import { cellText, exactText, threeDigits } from "../src/numbers.js";
import { panelOf } from "../src/panel.js";

const NODE: Node = {
  name: "scores", kind: "step", operation: "", shape: [1, 2, 3, 3], tensor: { shape: [1, 2, 3, 3], values: Array.from({ length: 18 }, (_, i) => i) },
  axes: ["batch", "head", "token", "key"], role: null, rule: null, line: null, module: "", about: "", source: "", notes: [], unused: false, shown: true,
};

test("positions and indices are inverse", () => {
  for (let i = 0; i < 24; i++) assert.equal(positionOf([2, 3, 4], indexOf([2, 3, 4], i)), i);
});

test("arrays are read from their bytes, in place of what describes them", () => {
  const bytes = Buffer.alloc(16);
  bytes.writeFloatLE(1.5, 0);
  bytes.writeDoubleLE(-Infinity, 8);
  const read = unpacked(
    { a: [{ dtype: "f4", shape: [1], offset: 0 }], b: { dtype: "f8", shape: [], offset: 8 }, c: "x" },
    bytesOf(bytes.toString("base64")),
  ) as { a: [{ values: Float32Array }]; b: { values: Float64Array }; c: string };
  assert.deepEqual([...read.a[0].values], [1.5]);
  assert.deepEqual([...read.b.values], [-Infinity]);
  assert.equal(read.c, "x");
});

test("an operand of fewer axes is broadcast", () => {
  assert.equal(broadcastEntry({ shape: [1, 3], values: [5, 6, 7] }, [4, 2, 1]), 6);
});

test("a map shows tokens as rows and keys as columns, for one head", () => {
  const panel = panelOf(NODE, { batch: 0, head: 1 })!;
  assert.equal(panel.value(2, 0), 15);
  assert.deepEqual(panel.index(2, 0), [0, 1, 2, 0]);
  assert.deepEqual(panel.cell([0, 1, 2, 0]), [2, 0]);
  assert.equal(panel.cell([0, 0, 2, 0]), null);
});

test("tokens stand first in a map, wherever heads are", () => {
  const einsum: Node = { ...NODE, axes: ["token", "head", "feature"], shape: [3, 2, 3], tensor: { shape: [3, 2, 3], values: NODE.tensor!.values } };
  const panel = panelOf(einsum, { batch: 0, head: 1 })!;
  assert.deepEqual([panel.rows, panel.columns], [3, 3]);
  assert.equal(panel.value(1, 2), entry(einsum.tensor!, [1, 1, 2]));
});

test("a vector is one row", () => {
  const vector: Node = { ...NODE, axes: ["feature"], shape: [3], tensor: { shape: [3], values: [1, 2, 3] } };
  const panel = panelOf(vector, { batch: 0, head: 0 })!;
  assert.deepEqual([panel.rows, panel.columns], [1, 3]);
  assert.deepEqual(panel.cell([1]), [0, 1]);
});

test("a product's bias is part of its explanation", () => {
  const tensor = (shape: number[], values: number[]): Node => ({ ...NODE, shape, tensor: { shape, values }, axes: shape.map(() => "") });
  const nodes = [
    { ...tensor([1, 2], [2, 3]), name: "x" },
    { ...tensor([1, 2], [5, 7]), name: "W" },
    { ...tensor([1], [100]), name: "b" },
    {
      ...tensor([1, 1], [131]), name: "y",
      rule: { kind: "product", left: 0, right: 1, bias: 2, letters: { left: "ik", right: "jk", result: "ij" } } as const,
    },
  ];
  const run = { title: "", labels: [], nodes, attentions: [] };
  const found = explain(run, 3, [0, 0]);
  assert.equal(found?.kind, "product");
  assert.deepEqual(found.terms.map((term) => term.product), [10, 21]);
  assert.equal(found.bias?.value, 100);
  assert.equal(formulaOf(run, nodes[3]!), "y[i, j] = Σₖ x[i, k] · W[j, k] + b[j]");
});

test("cells can be read: black or white has a contrast of at least 4.5", () => {
  const luminance = (color: readonly number[]) => {
    const [r, g, b] = color.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r! + 0.7152 * g! + 0.0722 * b!;
  };
  for (const theme of ["light", "dark"] as const) {
    for (let level = -LEVELS; level <= LEVELS; level++) {
      const color = colorOf(level, theme);
      const ink = inkOn(color) === "#fff" ? 1 : 0;
      const [low, high] = [luminance(color), ink].sort((a, b) => a - b);
      assert.ok((high! + 0.05) / (low! + 0.05) >= 4.5, `${theme} ${level}`);
    }
  }
});

test("values have classes by sign and size, and what is not finite has its own", () => {
  assert.equal(classOf(0, 1), "p0");
  assert.equal(classOf(1, 1), `p${LEVELS}`);
  assert.equal(classOf(-1, 1), `n${LEVELS}`);
  assert.equal(classOf(-Infinity, 1), "hidden");
  assert.equal(classOf(NaN, 1), "nan");
  assert.equal(levelOf(0.5, 0), 0);
});

test("numbers are as long as their scale needs", () => {
  assert.equal(cellText(-0.001, 1), "0.00");
  assert.equal(cellText(-0.5, 1), "−0.50");
  assert.equal(cellText(123.4, 200), "123");
  assert.equal(cellText(0.00001, 0.00002), "1.0e−5");
  assert.equal(exactText(-Infinity), "−∞");
  assert.equal(exactText(1 / 3), "0.3333");
  assert.deepEqual([0.63, 12.345, 4112.6, 0.00012345, 0].map(threeDigits), ["0.630", "12.3", "4113", "1.23e−4", "0.00"]);
});

test("labels show what cannot be seen, and end", () => {
  assert.equal(labelText("a\u0000b\n"), "a␀b↵");
  assert.equal(labelText("\u202eevil"), "\ufffdevil");
  assert.equal(labelText(""), "∅");
  assert.equal(labelText("  "), "␣␣");
  assert.equal(labelText("👩‍👩‍👧"), "👩‍👩‍👧");
  assert.equal(labelText("x".repeat(1_000_000)), `${"x".repeat(24)}…`);
});

test("combinations, exponentials and reductions are explained", () => {
  const tensor = (name: string, shape: number[], values: number[], rule: Node["rule"] = null): Node =>
    ({ ...NODE, name, shape, tensor: { shape, values }, axes: shape.map(() => ""), rule });
  const nodes = [
    tensor("a", [2, 2], [1, 2, 3, 4]),
    tensor("largest", [2, 1], [2, 4], { kind: "reduce", of: 0, axis: 1, operator: "max" }),
    tensor("difference", [2, 2], [-1, 0, -1, 0], { kind: "combine", terms: [0, 1], operator: "−" }),
    tensor("power", [2, 2], [Math.exp(-1), 1, Math.exp(-1), 1], { kind: "exp", of: 2 }),
    tensor("total", [2], [3, 7], { kind: "reduce", of: 0, axis: 1, operator: "sum" }),
  ];
  const run = { title: "", labels: [], nodes, attentions: [] };
  const values = (node: number, index: number[]) => {
    const found = explain(run, node, index)!;
    return found.kind === "reduce" ? found.entries.map((it) => it.value) : found.kind === "combine" ? found.terms.map((it) => it.value) : [];
  };
  assert.deepEqual(values(1, [1, 0]), [3, 4]);
  assert.deepEqual(values(4, [1]), [3, 4]);
  assert.deepEqual(values(2, [1, 0]), [3, 4]);
  assert.equal(formulaOf(run, nodes[2]!), "difference = a − largest");
});

test("a reduced value is not explained", () => {
  const whole: Node = { ...NODE, shape: [2, 2], tensor: { shape: [2, 2], values: [1, 2, 3, 4] }, axes: ["", ""] };
  const half: Node = { ...whole, shape: [4, 4], rule: { kind: "exp", of: 0 } };
  assert.equal(explain({ title: "", labels: [], nodes: [whole, half], attentions: [] }, 1, [0, 0]), null);
});
