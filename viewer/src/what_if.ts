/** The view "what if": an attention whose parts the reader changes, with every step and its symptoms at once. */

import { type Settings, sees } from "./attention.js";
import { curveChart } from "./chart.js";
import { entry } from "./data.js";
import { heading, labelText, levelWithin, make, uniqueId } from "./elements.js";
import { codeOf, RIGHT } from "./example.js";
import { matrixOf } from "./matrix.js";
import { exactText, shortText } from "./numbers.js";
import { largestOf } from "./panel.js";
import { QUESTIONS, type Question } from "./questions.js";
import { StepsView } from "./steps.js";
import { outcomeOf, type Outcome, sharpnessCurve } from "./symptoms.js";

type Choices = readonly (readonly [value: string, text: string])[];

export class WhatIfView {
  private settings: Settings = RIGHT;
  private outcome: Outcome = outcomeOf(RIGHT);
  private readonly knobs = make("section", { class: "knobs", "aria-label": "Settings" });
  private readonly symptoms = make("section", { class: "symptoms", "aria-label": "Symptoms" });
  private readonly listing = make("div", { class: "listing", role: "group", "aria-label": "The code that these settings amount to" });
  private readonly level: number;
  private readonly steps: StepsView;
  private readonly redraw: (() => void)[] = [];

  constructor(root: HTMLElement) {
    this.level = levelWithin(root);
    const stepsRoot = make("div", { class: "view steps" }, this.listing);
    root.replaceChildren(
      make("div", { class: "bench" },
        make("div", { class: "left" }, this.questions(), this.knobs),
        this.symptoms),
      stepsRoot);
    this.drawCode();
    this.steps = new StepsView(stepsRoot, [this.outcome.run]);
    this.buildKnobs();
    this.drawSymptoms();
  }

  /** Take over changed settings, and show what follows. */
  private change(change: Partial<Settings>): void {
    this.settings = { ...this.settings, ...change };
    this.outcome = outcomeOf(this.settings);
    this.drawCode();
    this.steps.update([this.outcome.run]);
    this.drawSymptoms();
    for (const draw of this.redraw) draw();
  }

  private drawCode(): void {
    const right = new Map(codeOf(RIGHT).map((line) => [line.name, line.text]));
    this.listing.replaceChildren(
      make("p", { class: "file" }, "The code that these settings amount to; T = 6 tokens, H = 2 heads, D = 2"),
      make("pre", {}, ...codeOf(this.settings).map(({ name, text }, i) =>
        make("span", {
          id: `code-${name}`, "data-line": i + 1, class: right.get(name) === text ? null : "changed",
          title: right.get(name) === text ? null : "This line differs from the right one.",
        }, text))));
  }

  // --- settings ---

  private buildKnobs(): void {
    const menu = (name: keyof Settings, text: string, choices: Choices) => {
      const id = uniqueId("knob");
      const select = make("select", { id }, ...choices.map(([value, shown]) => make("option", { value }, shown)));
      const draw = () => { select.value = String(this.settings[name]); };
      select.addEventListener("change", () => { this.change({ [name]: select.value }); });
      this.redraw.push(draw);
      draw();
      return make("p", {}, make("label", { for: id }, text), select);
    };
    this.knobs.append(
      heading(this.level, {}, "Change it"),
      menu("scale", "The scores are divided by", [["root", "√d (right)"], ["none", "nothing"], ["whole", "d"], ["all heads", "√(H · d)"]]),
      menu("mask", "The mask", [["causal", "hides later keys (right)"], ["none", "is left out"], ["later", "hides the wrong side"], ["after softmax", "comes after softmax"], ["own", "is mine: see below"]]),
      menu("softmaxOver", "Softmax runs over", [["keys", "the keys (right)"], ["queries", "the queries"]]),
      menu("split", "Heads are split by", [["transpose", "view and transpose (right)"], ["view only", "view alone"]]),
      menu("merge", "Heads are merged by", [["transpose", "transpose and reshape (right)"], ["view only", "reshape alone"]]),
      this.slider("temperature", "Temperature", -1, 1, 0.05, (position) => 10 ** position, Math.log10),
      this.slider("dropout", "Dropout p", 0, 0.9, 0.1, (position) => Math.round(position * 10) / 10, (value) => value),
      this.seed(),
      this.tokens(),
      this.ownMask(),
      this.reset());
  }

  private slider(name: "temperature" | "dropout", text: string, low: number, high: number, step: number, valueOf: (position: number) => number, positionOf: (value: number) => number): HTMLElement {
    const id = uniqueId("knob");
    const input = make("input", { id, type: "range", min: low, max: high, step });
    const shown = make("output", { for: id });
    const draw = () => {
      input.value = String(positionOf(this.settings[name]));
      shown.textContent = shortText(Number(this.settings[name].toPrecision(2)));
      input.setAttribute("aria-valuetext", shown.textContent);
    };
    input.addEventListener("input", () => { this.change({ [name]: valueOf(Number(input.value)) }); });
    this.redraw.push(draw);
    draw();
    return make("p", {}, make("label", { for: id }, text), input, shown);
  }

  private seed(): HTMLElement {
    const id = uniqueId("knob");
    const input = make("input", { id, type: "number", min: 0, max: 2 ** 31, step: 1, class: "seed" });
    const draw = () => {
      if (Number(input.value) !== this.settings.seed || input.value === "") input.value = String(this.settings.seed);
    };
    input.addEventListener("change", () => {
      const seed = Math.trunc(Number(input.value));
      this.change(Number.isFinite(seed) && seed >= 0 ? { seed } : {});
    });
    const next = make("button", { type: "button" }, "another");
    next.addEventListener("click", () => { this.change({ seed: this.settings.seed + 1, dropout: this.settings.dropout || 0.5 }); });
    this.redraw.push(draw);
    draw();
    return make("p", {}, make("label", { for: id }, "Seed of dropout"), input, next);
  }

  private tokens(): HTMLElement {
    const { labels } = this.settings;
    const inputs = this.settings.tokens.map((token, t) => token.map((_, f) => {
      const input = make("input", { type: "number", step: 0.1, "aria-label": `Feature ${f} of ${labels[t]!}` });
      input.addEventListener("input", () => {
        const value = Number(input.value);
        if (input.value === "" || !Number.isFinite(value) || Math.abs(value) > 1e6) return;
        this.change({ tokens: this.settings.tokens.map((row, i) => row.map((old, j) => (i === t && j === f ? value : old))) });
      });
      return input;
    }));
    const draw = () => {
      inputs.forEach((row, t) => { row.forEach((input, f) => {
        if (Number(input.value) !== this.settings.tokens[t]![f] || input.value === "") input.value = String(this.settings.tokens[t]![f]);
      }); });
    };
    this.redraw.push(draw);
    draw();
    const rows = inputs.map((row, t) => make("tr", {}, make("th", { scope: "row" }, labelText(labels[t]!)), ...row.map((input) => make("td", {}, input))));
    const head = make("tr", {}, make("td"), ...inputs[0]!.map((_, f) => make("th", { scope: "col" }, String(f))));
    return make("details", { open: true }, make("summary", {}, "The tokens' numbers"), make("table", { class: "tokens" }, make("thead", {}, head), make("tbody", {}, ...rows)));
  }

  private ownMask(): HTMLElement {
    const { labels } = this.settings;
    const boxes = labels.map((query, i) => labels.map((key, j) => {
      const box = make("input", { type: "checkbox", "aria-label": `${query} sees ${key}` });
      box.addEventListener("change", () => {
        const own = this.settings.own.map((row, a) => row.map((_, b) =>
          a === i && b === j ? Number(box.checked) : this.settings.mask === "none" ? 1 : Number(sees(this.settings, a, b))));
        this.change({ own, mask: "own" });
      });
      return box;
    }));
    const draw = () => {
      boxes.forEach((row, i) => { row.forEach((box, j) => { box.checked = sees(this.settings, i, j); }); });
    };
    this.redraw.push(draw);
    draw();
    const head = make("tr", {}, make("td"), ...labels.map((key) => make("th", { scope: "col" }, labelText(key))));
    const rows = boxes.map((row, i) => make("tr", {}, make("th", { scope: "row" }, labelText(labels[i]!)), ...row.map((box) => make("td", {}, box))));
    return make("details", {}, make("summary", {}, "The mask, entry by entry"), make("table", { class: "tokens own" }, make("thead", {}, head), make("tbody", {}, ...rows)));
  }

  private reset(): HTMLElement {
    const button = make("button", { type: "button" }, "Make all right again");
    button.addEventListener("click", () => { this.change(RIGHT); });
    return make("p", {}, button);
  }

  // --- symptoms ---

  private drawSymptoms(): void {
    const { sums, leaks, keysInUse, largestWeight, undefinedOutputs, error, tornRows, reach } = this.outcome;
    const { labels } = this.settings;
    const sumText = Math.abs(sums[0] - sums[1]) < 5e-5 ? exactText(sums[0]) : `${exactText(sums[0])} to ${exactText(sums[1])}`;
    const facts: readonly (readonly [string, string, boolean])[] = [
      ["The weights of a query add up to", sumText, Math.abs(sums[0] - 1) < 1e-6 && Math.abs(sums[1] - 1) < 1e-6],
      ["Outputs that depend on a later token", leaks === 0 ? "none" : `${leaks} of 15 pairs`, leaks === 0],
      ["Rows of heads with other tokens' numbers", tornRows === 0 ? "none" : `${tornRows} of 12`, tornRows === 0],
      ["Outputs that are NaN", undefinedOutputs === 0 ? "none" : `${undefinedOutputs} of 24`, undefinedOutputs === 0],
      ["Largest difference from the right output", exactText(error), !(error > 1e-9) && !Number.isNaN(error)],
      ["Keys that share a query's weight, on average", keysInUse.toFixed(2), true],
      ["Largest weight", exactText(largestWeight), true],
    ];
    const list = make("dl", {}, ...facts.map(([name, value, good]) =>
      make("div", { class: good ? "fact" : "fact wrong" }, make("dt", {}, name),
        make("dd", {}, good ? value : `✗ ${value}`))));
    const map = matrixOf("By how much each output changes if a token does", {
      rows: labels, columns: labels, value: (i, j) => entry(reach, [i, j]), largest: largestOf(reach) || 1, whole: false,
    }, () => undefined);
    this.symptoms.replaceChildren(
      heading(this.level, {}, "What shows it"), list,
      heading(this.level + 1, {}, "Who reaches whom"),
      make("p", { class: "soft" }, "By how much the output of a row changes if the numbers of the token above change by 0.25. Right of the diagonal there should be nothing but 0."),
      map.element,
      curveChart("Keys that share the weight, by temperature; the line is now", "temperature", sharpnessCurve(this.settings), this.settings.temperature));
  }

  // --- questions ---

  private questions(): HTMLElement {
    const section = make("section", { class: "questions", "aria-label": "Predict first" });
    let at = 0;
    const show = () => {
      const question = QUESTIONS[at]!;
      section.replaceChildren(
        heading(this.level, {}, "Predict first, then look ", make("small", { class: "soft" }, `${at + 1} of ${QUESTIONS.length}`)),
        this.ask(question, () => {
          at = (at + 1) % QUESTIONS.length;
          show();
          section.querySelector("input")?.focus();
        }));
    };
    show();
    return section;
  }

  private ask(question: Question, next: () => void): HTMLElement {
    const name = uniqueId("question");
    const boxes = question.choices.map((_, i) => make("input", { type: "radio", name, value: i }));
    const look = make("button", { type: "button", disabled: true }, "Look");
    const skip = make("button", { type: "button" }, "Next question");
    const verdict = make("p", { class: "verdict", "aria-live": "polite" });
    for (const box of boxes) box.addEventListener("change", () => { look.disabled = false; });
    look.addEventListener("click", () => {
      const before = outcomeOf(RIGHT);
      this.change({ ...RIGHT, ...question.change });
      const answer = question.answer(before, this.outcome);
      const chosen = boxes.findIndex((box) => box.checked);
      verdict.replaceChildren(
        make("strong", { class: chosen === answer ? "good" : "bad" }, chosen === answer ? "Right. " : `No: ${question.choices[answer]!}. `),
        question.why(this.outcome));
    });
    skip.addEventListener("click", next);
    return make("div", {},
      make("fieldset", {}, make("legend", {}, question.text),
        ...boxes.map((box, i) => make("label", {}, box, ` ${question.choices[i]!}`))),
      make("p", { class: "buttons" }, look, skip), verdict);
  }
}
