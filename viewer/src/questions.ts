/** Questions to answer before looking. The answer is measured on the example, not written down. */

import type { Settings } from "./attention.js";
import { RIGHT } from "./example.js";
import type { Outcome } from "./symptoms.js";

export interface Question {
  readonly text: string;
  readonly choices: readonly string[];
  readonly change: Partial<Settings>;
  /** The place of the choice that the outcomes before and after the change bear out. */
  readonly answer: (before: Outcome, after: Outcome) => number;
  readonly why: (after: Outcome) => string;
}

export const QUESTIONS: readonly Question[] = [
  {
    text: "You leave out the division by √d. On how many keys does a query now spread its weight?",
    choices: ["on more", "on as many", "on fewer"],
    change: { scale: "none" },
    answer: (before, after) => after.keysInUse > before.keysInUse + 0.01 ? 0 : after.keysInUse < before.keysInUse - 0.01 ? 2 : 1,
    why: (after) => `Larger scores lie farther apart, and softmax turns differences into ratios: ${after.keysInUse.toFixed(2)} keys are in use on average. With d = 64 nearly all weight would go to one key.`,
  },
  {
    text: "You split the heads by view(H, T, D) alone, without the transpose. The shapes stay the same. Whose numbers are in row “journey” of head 0?",
    choices: ["those of “journey”, as before", "those of another token"],
    change: { split: "view only" },
    answer: (_, after) => (after.tornRows > 0 ? 1 : 0),
    why: (after) => `A view keeps the order in memory, where all heads of one token lie side by side. ${after.tornRows} of ${RIGHT.heads * RIGHT.labels.length} rows hold numbers of other tokens, and no error is raised.`,
  },
  {
    text: "You apply the mask after softmax: weights of later keys become 0. What do the weights of the first query add up to?",
    choices: ["1", "less than 1", "more than 1"],
    change: { mask: "after softmax" },
    answer: (_, after) => (after.sums[0] < 1 - 1e-9 ? 1 : after.sums[1] > 1 + 1e-9 ? 2 : 0),
    why: (after) => `Softmax gave a share to the later keys, too, and that share is lost: the sums go down to ${after.sums[0].toFixed(2)}. Worse, the scores of later keys are still in the normalizer, so ${after.leaks} pairs leak.`,
  },
  {
    text: "Softmax runs over the queries (dim=-2) in place of the keys. The mask is right. Does an output now depend on later tokens?",
    choices: ["no, the mask forbids it", "yes"],
    change: { softmaxOver: "queries" },
    answer: (_, after) => (after.leaks > 0 ? 1 : 0),
    why: (after) => `The normalizer of a key adds up its scores with all queries, later ones included: ${after.leaks} pairs leak.`,
  },
  {
    text: "Dropout with p = 0.5 sets about half of the weights to 0 and doubles the others. What do the weights of a query add up to?",
    choices: ["always 1", "always 0.5", "it differs from query to query"],
    change: { dropout: 0.5 },
    answer: (_, after) => (after.sums[1] - after.sums[0] > 1e-9 ? 2 : Math.abs(after.sums[0] - 1) < 1e-9 ? 0 : 1),
    why: (after) => `Only the average over many draws is 1. Here the sums lie between ${after.sums[0].toFixed(2)} and ${after.sums[1].toFixed(2)}. Try other seeds.`,
  },
  {
    text: "You build the mask the wrong way round, so that each query sees later keys only. What does the last query get?",
    choices: ["zeros", "its own value", "NaN"],
    change: { mask: "later" },
    answer: (_, after) => (after.undefinedOutputs > 0 ? 2 : 0),
    why: (after) => `It sees no key at all: every score is −∞, and softmax divides 0 by 0. ${after.undefinedOutputs} outputs are NaN, and in a deeper model they would spread.`,
  },
  {
    text: "You raise the temperature to 10, which divides the scores by 10 more. What happens to the weights?",
    choices: ["they become more equal", "they become more different"],
    change: { temperature: 10 },
    answer: (before, after) => (after.keysInUse > before.keysInUse ? 0 : 1),
    why: (after) => `All scores come close to 0, and exp(0) is 1 for every key: ${after.keysInUse.toFixed(2)} keys are in use on average, of the 3.5 that a query may see.`,
  },
];
