import assert from "node:assert/strict";
import { test } from "node:test";
import { attend, outputOf, type Settings } from "../src/attention.js";
import { entry, type Run, type Tensor } from "../src/data.js";
import { kept } from "../src/dropout.js";
import { RIGHT } from "../src/example.js";
import { explain } from "../src/explain.js";
import { QUESTIONS } from "../src/questions.js";
import { outcomeOf } from "../src/symptoms.js";
import { assertClose, assertFigure, EXPECTED, FIGURES, oneHead, transposed } from "./figures.js";

const IDENTITY = [[1, 0, 0], [0, 1, 0], [0, 0, 1]];
const NONE = { query: IDENTITY, key: IDENTITY, value: IDENTITY };

function named(run: Run, name: string): Tensor {
  const node = run.nodes.find((it) => it.name === name);
  assert.ok(node?.tensor, name);
  return node.tensor;
}

function printed(id: string): readonly (readonly number[])[] {
  return FIGURES.figures.find((it) => it.id === id)!.expected as unknown as readonly (readonly number[])[];
}

test("attention without weights has the printed figures", () => {
  const run = attend(oneHead("C", NONE, { scale: "none" }));
  assertFigure("C.scores.all", named(run, "scores"));
  assertFigure("C.weights.all", named(run, "weights"));
  assertFigure("C.context.all", outputOf(run));
  assertFigure("A.context.all", outputOf(attend(oneHead("A", NONE, { scale: "none" }))));
});

test("attention with the printed parameters has the printed figures", () => {
  const weights = { query: transposed(printed("C.W_query")), key: transposed(printed("C.W_key")), value: transposed(printed("C.W_value")) };
  const run = attend(oneHead("C", weights));
  assertClose(named(run, "keys").values, printed("C.keys"), 2e-4);
  assertClose(outputOf(run).values, printed("C.self_attention.parameters"), 2e-4);
});

test("causal attention with linear layers has the printed figures", () => {
  const run = attend(oneHead("C", EXPECTED.linear, { mask: "causal" }));
  assertFigure("C.causal.weights", named(run, "weights"));
  assertFigure("C.causal.weights_before_mask", named(attend(oneHead("C", EXPECTED.linear)), "weights"));
  assertFigure("C.self_attention.linear", outputOf(attend(oneHead("C", EXPECTED.linear))));
  const multiplied = attend(oneHead("C", EXPECTED.linear, { mask: "after softmax" }));
  assertFigure("C.causal.multiplied", named(multiplied, "kept_weights"));
});

test("every choice of two heads gives what PyTorch gives", () => {
  assert.ok(EXPECTED.settings.length > 10);
  for (const { change, output } of EXPECTED.settings) {
    assertClose(outputOf(attend({ ...RIGHT, ...change })).values, output, 1e-9);
  }
});

test("dropout keeps what heedful's generator keeps", () => {
  for (const { seed, p, kept: expected } of EXPECTED.kept) {
    const found = expected.map((_, i) => kept(seed, p, i % 2, Math.floor(i / 2) % 3, Math.floor(i / 6) % 7, i % 11));
    assert.deepEqual(found, expected);
  }
});

test("every entry of every node is explained by numbers that make it", () => {
  const changes: Partial<Settings>[] = [{}, { split: "view only" }, { mask: "after softmax", dropout: 0.5 }, { softmaxOver: "queries", mask: "later" }, { merge: "view only", heads: 1 }];
  for (const change of changes) {
    const run = attend({ ...RIGHT, ...change });
    run.nodes.forEach((node, at) => {
      for (let i = 0; i < node.tensor!.values.length; i++) {
        const index: number[] = [];
        for (let axis = node.shape.length - 1, rest = i; axis >= 0; rest = Math.floor(rest / node.shape[axis]!), axis--) index.unshift(rest % node.shape[axis]!);
        const value = entry(node.tensor!, index);
        const made = remade(run, at, index);
        if (made !== null) assertClose([made], value, 1e-12);
        else assert.ok(node.rule === null);
      }
    });
  }
});

/** The value of an entry, computed from its explanation alone. */
function remade(run: Run, node: number, index: readonly number[]): number | null {
  const explanation = explain(run, node, index);
  if (explanation === null) return null;
  switch (explanation.kind) {
    case "product":
      return explanation.terms.reduce((sum, term) => sum + term.left.value * term.right.value, 0);
    case "scale":
      return explanation.of.value / explanation.by;
    case "mask":
      return explanation.kept ? explanation.of.value : explanation.fill;
    case "softmax":
      return explanation.entries[explanation.at]!.exponential / explanation.total;
    case "dropout":
      return explanation.kept ? explanation.of.value / (1 - explanation.p) : 0;
    case "move":
      return explanation.of.value;
    default:
      throw new Error(explanation.kind);
  }
}

test("the right attention has no symptom", () => {
  const right = outcomeOf(RIGHT);
  assert.equal(right.leaks, 0);
  assert.equal(right.tornRows, 0);
  assert.equal(right.undefinedOutputs, 0);
  assert.equal(right.error, 0);
  assertClose(right.sums, [1, 1], 1e-12);
});

test("every mistake has its symptom", () => {
  const outcome = (change: Partial<Settings>) => outcomeOf({ ...RIGHT, ...change });
  assert.equal(outcome({ mask: "none" }).leaks, 15);
  assert.ok(outcome({ mask: "after softmax" }).leaks > 0);
  assert.ok(outcome({ mask: "after softmax" }).sums[0] < 0.9);
  assert.equal(outcome({ mask: "later" }).undefinedOutputs, 4);
  assert.ok(outcome({ softmaxOver: "queries" }).leaks > 0);
  assert.ok(outcome({ split: "view only" }).tornRows > 0);
  assert.ok(outcome({ split: "view only" }).leaks > 0);
  assert.ok(outcome({ merge: "view only" }).leaks > 0);
  assert.ok(outcome({ scale: "whole" }).error > 0.01);
  assert.ok(outcome({ dropout: 0.5 }).sums[0] < outcome({ dropout: 0.5 }).sums[1]);
  assert.ok(outcome({ temperature: 10 }).keysInUse > outcome({ temperature: 0.1 }).keysInUse + 1);
});

test("every question has the answer that its explanation gives", () => {
  const answers = QUESTIONS.map((question) => {
    const after = outcomeOf({ ...RIGHT, ...question.change });
    assert.ok(question.why(after).length > 40);
    return question.choices[question.answer(outcomeOf(RIGHT), after)];
  });
  assert.deepEqual(answers, ["on fewer", "those of another token", "less than 1", "yes", "it differs from query to query", "NaN", "they become more equal"]);
});
