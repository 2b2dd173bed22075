// Light or dark before anything is drawn, so that nothing flashes. No module: it must run at once.
"use strict";
(() => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => {
    const chosen = localStorage.getItem("tidemark.theme");
    document.documentElement.dataset.theme = chosen ?? (dark.matches ? "dark" : "light");
  };
  dark.addEventListener("change", apply);
  addEventListener("tidemark-theme", apply);
  apply();
})();
