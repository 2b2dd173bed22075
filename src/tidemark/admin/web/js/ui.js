// The pieces that pages are made of: buttons, cards, facts, badges, notices, dialogs, messages at the edge.

import { append, fill, freshId, h, icon } from "./dom.js";
import { bytes, percent } from "./format.js";

// Words and links -------------------------------------------------------------------------------------------

export const link = (href, text, props = {}) => h("a", { href, ...props }, text);

/** A number in a table; nought is quiet, so that the others are seen. */
export const figure = (format) => (value) => (Number(value ?? 0) === 0 ? h("span", { class: "zero" }, format(value ?? 0)) : format(value));

export const badge = (text, tone = "", title = null) => h("span", { class: `badge ${tone}`, title }, text);

/** A state with a dot; never colour alone. */
export const state = (text, tone) => h("span", { class: `state ${tone}` }, h("i", { class: "dot", "aria-hidden": "true" }), text);

export const button = (text, act, { kind = "", icon: sign = null, title = null, label = null, disabled = false, shortcut = null } = {}) =>
  h("button", { type: "button", class: `button ${kind}`, title, "aria-label": label, "aria-keyshortcuts": shortcut, disabled, on: { click: act } }, sign && icon(sign), text);

// Blocks ----------------------------------------------------------------------------------------------------

/** A block without a title of its own; `label` is for those who do not see it. */
export const sheet = (label, ...children) => h("section", { class: "card", "aria-label": label }, h("div", { class: "card-body" }, children));

export function card(title, ...children) {
  const id = freshId("card");
  const extra = children.length && children[0]?.actions ? children.shift().actions : null;
  return h("section", { class: "card", "aria-labelledby": id },
    h("header", { class: "card-head" }, h("h2", { id }, title), extra && h("div", { class: "card-actions" }, extra)),
    h("div", { class: "card-body" }, children));
}

/** The head of a page: where we are, its name, what can be done. */
export function heading(title, { above = null, note = null, actions = [] } = {}) {
  return h("header", { class: "page-head" },
    h("div", { class: "page-title" },
      above && h("nav", { class: "crumbs", "aria-label": "Where you are" }, above),
      h("h1", { tabindex: "-1" }, title),
      note && h("div", { class: "page-note" }, note)),
    actions.length ? h("div", { class: "page-actions" }, actions) : null);
}

/** Names and values in two columns. `show(facts)` puts others in place: an array of [name, value]. */
export function factList(label) {
  const node = h("dl", { class: "facts", "aria-label": label });
  return {
    node,
    show(facts) {
      fill(node, facts.filter(Boolean).map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));
    },
  };
}

export const skeleton = (lines = 4) =>
  h("div", { class: "skeleton", role: "status", "aria-label": "Loading" }, Array.from({ length: lines }, () => h("i")));

export const empty = (title, words, action = null) =>
  h("div", { class: "empty" }, h("strong", null, title), words && h("p", null, words), action);

export const notice = (tone, ...words) =>
  h("div", { class: `notice ${tone}`, role: tone === "bad" ? "alert" : "status" }, tone === "bad" || tone === "warn" ? icon("warning") : null, h("div", null, words));

export function meter(label, value, limit, words, tone = "") {
  const share = percent(value, limit);
  const bar = h("i");
  bar.style.width = `${share}%`;
  return h("div", { class: `meter ${tone}` },
    h("div", { class: "meter-words" }, h("span", null, label), h("b", null, words ?? `${bytes(value)} of ${bytes(limit)}`)),
    h("div", { class: "meter-bar", role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.round(share) }, bar));
}

/** Tabs that are links: each has its own address. */
export const tabs = (label, entries, current) =>
  h("nav", { class: "tabs", "aria-label": label }, entries.map(([name, href, text]) => h("a", { href, "aria-current": name === current ? "page" : null }, text)));

// Messages at the edge --------------------------------------------------------------------------------------

export function say(text, tone = "good") {
  const box = document.getElementById("said");
  const one = h("div", { class: `toast ${tone}` }, h("span", null, text));
  const gone = () => one.remove();
  one.append(button("", gone, { kind: "plain small", icon: "close", label: "Dismiss" }));
  box.append(one);
  while (box.children.length > 4) box.firstChild.remove();
  setTimeout(gone, tone === "bad" ? 12_000 : 5000);
}

/** Do something that changes the broker; say what came of it. Returns whether it went well. */
export async function attempt(act, done) {
  try {
    const found = await act();
    if (done) say(typeof done === "function" ? done(found) : done);
    return true;
  } catch (error) {
    say(error.message, "bad");
    return false;
  }
}

// Dialogs ---------------------------------------------------------------------------------------------------

/** A dialog that keeps the focus inside; closed by Escape, its cross or `close`. Returns {node, body, close}. */
export function dialog(title, { wide = false, onClose = () => {} } = {}) {
  const id = freshId("dialog");
  const body = h("div", { class: "dialog-body" });
  const close = () => node.close();
  const node = h("dialog", { class: wide ? "wide" : "", "aria-labelledby": id },
    h("header", { class: "dialog-head" }, h("h2", { id }, title), button("", close, { kind: "plain", icon: "close", label: "Close" })),
    body);
  node.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (event.key !== "Tab") return;
    const stops = [...node.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex='0']")].filter((one) => !one.disabled && one.offsetParent !== null);
    const first = stops[0];
    const last = stops[stops.length - 1];
    if (event.shiftKey && document.activeElement === first) {
      event.preventDefault();
      last.focus();
    } else if (!event.shiftKey && document.activeElement === last) {
      event.preventDefault();
      first.focus();
    }
  });
  node.addEventListener("click", (event) => event.target === node && close());
  node.addEventListener("close", () => {
    node.remove();
    onClose();
  });
  document.body.append(node);
  node.showModal();
  return { node, body, close };
}

/** Ask before something is destroyed. Resolves to true or false. */
export function ask(title, words, { confirm = "Delete", typed = null } = {}) {
  return new Promise((resolve) => {
    let answer = false;
    const { body, close } = dialog(title, { onClose: () => resolve(answer) });
    const yes = h("button", { type: "submit", class: "button danger", disabled: Boolean(typed) }, confirm);
    const form = h("form", { method: "dialog", on: { submit: (event) => { event.preventDefault(); answer = true; close(); } } });
    append(form, [h("div", { class: "dialog-words" }, words)]);
    if (typed) {
      const id = freshId("typed");
      form.append(h("label", { class: "field", for: id }, h("span", null, "Type ", h("code", null, typed), " to go on"),
        h("input", { id, autocomplete: "off", spellcheck: "false", on: { input: (event) => { yes.disabled = event.target.value !== typed; } } })));
    }
    const no = button("Cancel", close);
    form.append(h("footer", { class: "dialog-foot" }, no, yes));
    body.append(form);
    // What destroys is never what Enter hits by chance.
    (form.querySelector("input") ?? no).focus();
  });
}
