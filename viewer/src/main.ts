/** Draw the views of a page from its data. */

import { cellRules } from "./colors.js";
import { bytesOf, unpacked, type Run } from "./data.js";
import { make } from "./elements.js";
import type { HeadsContent } from "./heads.js";
import { HeadsView } from "./heads_view.js";
import { StepsView } from "./steps.js";
import { WhatIfView } from "./what_if.js";

interface Content {
  readonly views: readonly (
    { readonly kind: "steps"; readonly runs: readonly Run[] } | { readonly kind: "what if" } | HeadsContent
  )[];
}

function textOf(id: string): string {
  return document.getElementById(id)!.textContent;
}

document.head.append(make("style", {}, cellRules()));
const bytes = bytesOf(textOf("heedful-arrays"));
const content = unpacked(JSON.parse(textOf("heedful-data")), bytes) as Content;
content.views.forEach((view, i) => {
  const root = document.getElementById(`view-${i}`)!;
  if (view.kind === "steps") new StepsView(root, view.runs);
  else if (view.kind === "attention") new HeadsView(root, view, bytes);
  else new WhatIfView(root);
});
document.documentElement.dataset["ready"] = "true";
