// Three lines: the mark, and the water that comes up to it.

import { s } from "./dom.js";

export const logo = () =>
  s("svg", { class: "logo", viewBox: "0 0 32 32", "aria-hidden": "true" },
    s("rect", { class: "logo-ground", width: 32, height: 32, rx: 8 }),
    s("path", { class: "logo-mark", d: "M6 11.500h20" }),
    s("path", { class: "logo-wave", d: "M6 17.500c3.300-3 6.700-3 10 0s6.700 3 10 0" }),
    s("path", { class: "logo-wave faint", d: "M6 23.500c3.300-3 6.700-3 10 0s6.700 3 10 0" }));
