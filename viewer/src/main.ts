/** Draw the views of a page from its data. */

import { cellRules } from "./colors.js";
import { bytesOf, unpacked, type Run } from "./data.js";
import { make } from "./elements.js";
import { StepsView } from "./steps.js";
import { WhatIfView } from "./what_if.js";

interface Content {
  readonly views: readonly ({ readonly kind: "steps"; readonly runs: readonly Run[] } | { readonly kind: "what if" })[];
}

function read(): Content {
  const text = (id: string) => document.getElementById(id)!.textContent;
  return unpacked(JSON.parse(text("heedful-data")), bytesOf(text("heedful-arrays"))) as Content;
}

document.head.append(make("style", {}, cellRules()));
read().views.forEach((view, i) => {
  const root = document.getElementById(`view-${i}`)!;
  if (view.kind === "steps") new StepsView(root, view.runs);
  else new WhatIfView(root);
});
document.documentElement.dataset["ready"] = "true";
