export class WhatIfView { constructor(root: HTMLElement) { root.textContent = ""; } }
