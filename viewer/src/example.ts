/** The small example: a sentence of six tokens and two heads, with weights that one can multiply by hand. */

import { MERGES, type Settings, SPLITS } from "./attention.js";

export const RIGHT: Settings = {
  tokens: [
    [0.43, 0.15, 0.89],
    [0.55, 0.87, 0.66],
    [0.57, 0.85, 0.64],
    [0.22, 0.58, 0.33],
    [0.77, 0.25, 0.1],
    [0.05, 0.8, 0.55],
  ],
  labels: ["Your", "journey", "starts", "with", "one", "step"],
  queryWeights: [[3, -1, 0.5], [-1, 2, 1], [0.5, 3, -2], [1, -0.5, 2]],
  keyWeights: [[2, -2, 0.5], [-1, 2.5, 1], [1, 2, -1.5], [-2, 0.5, 3]],
  valueWeights: [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, -1, 0]],
  heads: 2,
  scale: "root",
  temperature: 1,
  mask: "causal",
  own: Array.from({ length: 6 }, (_, i) => Array.from({ length: 6 }, (_, j) => Number(j <= i))),
  softmaxOver: "keys",
  dropout: 0,
  seed: 123,
  split: "transpose",
  merge: "transpose",
};

/** The statements that the settings amount to, each with the name that its line has in the page. */
export function codeOf(settings: Settings): readonly { readonly name: string; readonly text: string }[] {
  const [split, merge] = [SPLITS[settings.split], MERGES[settings.merge]];
  const divisor = { root: "D**0.5", none: "1", whole: "D", "all heads": "(H * D)**0.5" }[settings.scale];
  const temperature = settings.temperature === 1 ? "" : ` / ${Number(settings.temperature.toPrecision(2))}`;
  const mask = {
    causal: "torch.ones(T, T).tril().bool()",
    "after softmax": "torch.ones(T, T).tril().bool()",
    later: "torch.ones(T, T).triu(1).bool()",
    own: "my_mask",
    none: "",
  }[settings.mask];
  const before = settings.mask !== "none" && settings.mask !== "after softmax";
  const after = settings.mask === "after softmax";
  const scored = before ? "masked_scores" : "scaled_scores";
  const weights = after ? "kept_weights" : "weights";
  const drops = settings.dropout > 0;
  const lines: [string, string][] = [
    ["queries", "queries = x @ W_query.T"],
    ["queries_by_head", `queries_by_head = queries.${split}`],
    ["keys", "keys = x @ W_key.T"],
    ["keys_by_head", `keys_by_head = keys.${split}`],
    ["values", "values = x @ W_value.T"],
    ["values_by_head", `values_by_head = values.${split}`],
    ["scores", "scores = queries_by_head @ keys_by_head.mT"],
    ["scaled_scores", `scaled_scores = scores / ${divisor}${temperature}`],
    ...(mask === "" ? [] : [["mask", `mask = ${mask}`] as [string, string]]),
    ...(before ? [["masked_scores", "masked_scores = scaled_scores.masked_fill(~mask, -torch.inf)"] as [string, string]] : []),
    ["weights", `weights = torch.softmax(${scored}, dim=${settings.softmaxOver === "keys" ? "-1" : "-2"})`],
    ...(after ? [["kept_weights", "kept_weights = weights * mask"] as [string, string]] : []),
    ...(drops ? [["dropped_weights", `dropped_weights = F.dropout(${weights}, p=${settings.dropout})`] as [string, string]] : []),
    ["context_by_head", `context_by_head = ${drops ? "dropped_weights" : weights} @ values_by_head`],
    ["context", `context = context_by_head.${merge}`],
  ];
  return lines.map(([name, text]) => ({ name, text }));
}
