/** The formula of a node, and why attention has such a step. */

import { numberOf, type Node, type Role, type Run } from "./data.js";
import { shortText } from "./numbers.js";

const SUBSCRIPTS: Readonly<Record<string, string>> = { i: "ᵢ", j: "ⱼ", k: "ₖ" };

/** The formula of a step, with the names of the recorded variables; without a rule, its statement. */
export function formulaOf(run: Run, node: Node): string {
  const { rule } = node;
  if (rule === null) return node.source;
  const nameOf = (position: number) => run.nodes[position]!.name;
  const [rows, columns] = ["i", "j"];
  const whole = node.shape.length < 2 ? "j" : `${rows}, ${columns}`;
  switch (rule.kind) {
    case "product": {
      const { left, right, result } = rule.letters;
      const inner = [...left].find((letter) => !result.includes(letter)) ?? "";
      const bias = rule.bias === null ? "" : ` + ${nameOf(rule.bias)}[${result.at(-1)!}]`;
      return (
        `${node.name}[${shown(result)}] = Σ${SUBSCRIPTS[inner] ?? inner} ` +
        `${nameOf(rule.left)}[${shown(left)}] · ${nameOf(rule.right)}[${shown(right)}]${bias}`
      );
    }
    case "scale":
      return `${node.name} = ${nameOf(rule.of)} ${rule.divides ? "/" : "·"} ${shortText(numberOf(rule.by))}${rootOf(rule)}`;
    case "mask": {
      const keep = rule.keeps ? "" : "not ";
      return (
        `${node.name}[${whole}] = ${nameOf(rule.of)}[${whole}] if ${keep}${nameOf(rule.mask)}[${whole}] ` +
        `else ${shortText(numberOf(rule.fill))}`
      );
    }
    case "softmax": {
      const over = rule.axis === node.shape.length - 1 ? columns : rows;
      const of = `exp(${nameOf(rule.of)}[${whole}])`;
      return `${node.name}[${whole}] = ${of} / Σ${SUBSCRIPTS[over]!} ${of}`;
    }
    case "dropout":
      return rule.p === 0
        ? `${node.name} = ${nameOf(rule.of)}: nothing is dropped`
        : `${node.name}[${whole}] = 0 with probability ${shortText(rule.p)}, else ${nameOf(rule.of)}[${whole}] / ${shortText(1 - rule.p)}`;
    case "combine":
      return `${node.name} = ${rule.terms.map(nameOf).join(` ${rule.operator} `)}`;
    case "exp":
      return `${node.name} = exp(${nameOf(rule.of)})`;
    case "reduce":
      return `${node.name} = ${rule.operator === "sum" ? "the sum" : "the largest"} of each row of ${nameOf(rule.of)}`;
    case "move":
      return node.source === "" ? `${node.name}: the entries of ${nameOf(rule.of)}, in another order or a part of them` : node.source;
  }
}

/** Letters of axes that are drawn; upper-case ones stand for batches and heads. */
function shown(letters: string): string {
  return [...letters].filter((letter) => letter === letter.toLowerCase()).join(", ");
}

/** The square root that a divisor is, if it is one of a whole number. */
function rootOf(rule: { by: number | string; divides: boolean }): string {
  const by = rule.divides ? numberOf(rule.by) : 1 / numberOf(rule.by);
  const square = Math.round(by * by);
  if (Math.abs(by * by - square) > 1e-4 || square < 2) return "";
  return rule.divides ? `  (√${square})` : `  (1/√${square})`;
}

const REASONS: Readonly<Record<Role, string>> = {
  tokens: "One row per token. All that follows is computed from these numbers.",
  "query weights": "What a query looks for is learned: these numbers turn a token into its query.",
  "key weights": "What a token is found by is learned, too, and need not be what it looks for.",
  "value weights": "What a token passes on is learned apart from what it is found by.",
  "output weights": "They mix what the heads have found, which are independent up to here.",
  queries: "What each token looks for.",
  keys: "What each token can be found by.",
  values: "What each token passes on when it is found.",
  split: "Each head gets features of its own from every token. Heads come before tokens, so that one product serves all heads.",
  scores: "A dot product is large if query and key point the same way. Row i has the scores of query i, one for each key.",
  scaled: "A dot product of d random terms grows with √d. Without the division, softmax would give nearly all weight to one key, and its gradients would vanish.",
  mask: "It says which keys each query may see. Without it, a model that predicts the next token could look at it.",
  masked: "exp(−∞) is 0. So a hidden key gets no weight, and the others add up to 1 without a correction.",
  weights: "Positive numbers that add up to 1: how each query divides its attention among the keys.",
  dropped: "In training, no token may rely on a single other one. The survivors grow by 1/(1 − p), so that the mean stays.",
  context: "The average of the values with these weights: what each token has gathered from those it attends to.",
  merged: "The contexts of all heads, side by side again for each token.",
  output: "The output projection mixes what the heads have found.",
};

export function reasonOf(role: Role | null): string {
  return role === null ? "" : REASONS[role];
}
