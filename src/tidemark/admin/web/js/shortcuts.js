// Keys for those who know where they want to go: `g q` and the like, listed under `?`.

import { h } from "./dom.js";
import { PLACES } from "./routes.js";
import { dialog } from "./ui.js";

const WAIT_MS = 1200;

export class Shortcuts {
  constructor(shell) {
    this.shell = shell;
    this.began = 0;
    this.pressed = this.pressed.bind(this);
  }

  start() {
    document.addEventListener("keydown", this.pressed);
  }

  stop() {
    document.removeEventListener("keydown", this.pressed);
  }

  pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const writing = event.target.closest("input:not([type=checkbox]):not([type=range]), textarea, select");
    if (event.key === "Escape") {
      this.shell.toggleMenu(false);
      if (writing) writing.blur();
      return;
    }
    if (writing) return;
    const going = Date.now() - this.began < WAIT_MS;
    this.began = 0;
    if (going) {
      const place = allPlaces().find((one) => one.key === event.key);
      if (place) {
        event.preventDefault();
        location.hash = `#${place.path}`;
      }
      return;
    }
    if (event.key === "g") this.began = Date.now();
    else if (event.key === "?") showHelp();
    else if (event.key === "t") this.shell.nextTheme();
    else if (event.key === "/") {
      const search = this.shell.content.querySelector("input[type=search]");
      if (!search) return;
      event.preventDefault();
      search.focus();
      search.select();
    } else if (event.key === "[" || event.key === "]") {
      this.shell.content.querySelector(`.pager [aria-keyshortcuts="${event.key}"]`)?.click();
    } else if (event.key === "n") {
      const make = this.shell.content.querySelector("[aria-keyshortcuts=n]");
      if (make) event.preventDefault();
      make?.click();
    }
  }
}

const allPlaces = () => [...PLACES.broker, ...PLACES.own, ...PLACES.admin];

export function showHelp() {
  const { body } = dialog("Shortcuts");
  const row = (keys, words) => h("div", { class: "key-row" }, h("span", { class: "keys" }, keys.map((key) => h("kbd", null, key))), h("span", null, words));
  body.append(
    h("div", { class: "key-columns" },
      h("section", null, h("h3", null, "Go to"), allPlaces().map((place) => row(["g", place.key], place.title))),
      h("section", null, h("h3", null, "On a page"),
        row(["/"], "Search the list"), row(["n"], "Make a new one"), row(["["], "Previous page of the list"), row(["]"], "Next page of the list"),
        row(["t"], "Light, dark, or as the system"), row(["Esc"], "Close, or leave a field"), row(["?"], "This list"))));
}
