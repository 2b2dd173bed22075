// Forms in dialogs. A field is described by data; what was filled in comes back as an object.

import { append, fill, freshId, h } from "./dom.js";
import { button, dialog, notice } from "./ui.js";

const KINDS = ["text", "number", "true/false", "list (JSON)"];

/** Open a form. `submit(values)` may throw: its words are shown and the form stays. */
export function openForm(title, { fields, submit, action = "Save", intro = null, wide = false }) {
  const { body, close, node } = dialog(title, { wide });
  const problem = h("div", { class: "form-problem" });
  const readers = {};
  const parts = fields.filter(Boolean).map((field) => {
    const [element, read] = KIND_OF_FIELD[field.kind ?? "text"](field);
    readers[field.name] = read;
    return element;
  });
  const go = h("button", { type: "submit", class: "button primary" }, action);
  const form = h("form", { class: "form", novalidate: true, on: { submit: onSubmit } });
  append(form, [intro && h("p", { class: "hint" }, intro), ...parts, problem, h("footer", { class: "dialog-foot" }, button("Cancel", close), go)]);
  body.append(form);
  node.querySelector("input:not([type=checkbox]), select, textarea")?.focus();

  async function onSubmit(event) {
    event.preventDefault();
    fill(problem);
    const missing = [...form.querySelectorAll("[required]")].find((one) => !one.value);
    if (missing) {
      fill(problem, notice("bad", `“${missing.dataset.label}” is needed.`));
      missing.focus();
      return;
    }
    go.disabled = true;
    try {
      const values = {};
      for (const [name, read] of Object.entries(readers)) values[name] = read();
      await submit(values);
      close();
    } catch (error) {
      fill(problem, notice("bad", error.message));
    } finally {
      go.disabled = false;
    }
  }
}

function wrapped(field, id, control) {
  return h("label", { class: `field ${field.narrow ? "narrow" : ""}`, for: id }, h("span", null, field.label, field.required ? h("em", { "aria-hidden": "true" }, " *") : null), control,
    field.hint && h("small", { class: "hint", id: `${id}-hint` }, field.hint));
}

const common = (field, id) => ({
  id,
  name: field.name,
  required: field.required,
  data: { label: field.label },
  placeholder: field.placeholder,
  "aria-describedby": field.hint ? `${id}-hint` : null,
  autocomplete: field.autocomplete ?? "off",
  spellcheck: "false",
});

function textField(type) {
  return (field) => {
    const id = freshId("field");
    const control = h("input", { type, ...common(field, id), value: field.value ?? "", list: field.options ? `${id}-list` : null, min: field.min, max: field.max });
    const element = wrapped(field, id, control);
    if (field.options) element.append(h("datalist", { id: `${id}-list` }, field.options.map((value) => h("option", { value }))));
    return [element, () => (type === "number" ? (control.value === "" ? null : Number(control.value)) : control.value)];
  };
}

const KIND_OF_FIELD = {
  text: textField("text"),
  password: textField("password"),
  number: textField("number"),
  area(field) {
    const id = freshId("field");
    const control = h("textarea", { ...common(field, id), rows: field.rows ?? 5, value: field.value ?? "" });
    return [wrapped(field, id, control), () => control.value];
  },
  select(field) {
    const id = freshId("field");
    const control = h("select", common(field, id), field.options.map((option) => {
      const [value, text] = Array.isArray(option) ? option : [option, option];
      return h("option", { value, selected: value === field.value }, text);
    }));
    return [wrapped(field, id, control), () => control.value];
  },
  check(field) {
    const id = freshId("field");
    const control = h("input", { type: "checkbox", id, name: field.name, checked: Boolean(field.value) });
    return [h("label", { class: "field check", for: id }, control, h("span", null, field.label, field.hint && h("small", { class: "hint" }, field.hint))), () => control.checked];
  },
  choices(field) {
    const chosen = new Set(field.value ?? []);
    const element = h("fieldset", { class: "field choices" }, h("legend", null, field.label), field.options.map(([value, text]) =>
      h("label", { class: "choice" }, h("input", { type: "checkbox", checked: chosen.has(value), on: { change: (event) => (event.target.checked ? chosen.add(value) : chosen.delete(value)) } }), text)));
    return [element, () => [...chosen]];
  },
  pairs: pairsField,
};

/** Arguments: a name, a value and its kind, as many as wanted; the usual ones at hand. */
function pairsField(field) {
  const rows = h("div", { class: "pairs" });
  const known = field.known ?? [];
  const list = freshId("known");

  function add(name = "", value = "", focus = false) {
    const kind = Array.isArray(value) || (typeof value === "object" && value !== null) ? KINDS[3] : typeof value === "number" ? KINDS[1] : typeof value === "boolean" ? KINDS[2] : KINDS[0];
    const text = kind === KINDS[3] ? JSON.stringify(value) : String(value);
    const key = h("input", { value: name, placeholder: "name", "aria-label": "Name", list, class: "pair-name", spellcheck: "false", autocomplete: "off", on: { change: usual } });
    const held = h("input", { value: text, placeholder: "value", "aria-label": "Value", class: "pair-value", spellcheck: "false", autocomplete: "off" });
    const sort = h("select", { "aria-label": "Kind of value", class: "pair-kind" }, KINDS.map((one) => h("option", { value: one, selected: one === kind }, one)));
    const row = h("div", { class: "pair" }, key, held, sort, button("", () => row.remove(), { kind: "plain", icon: "close", label: "Remove" }));
    rows.append(row);
    if (focus) (name ? held : key).focus();
    function usual() {
      const match = known.find(([one]) => one === key.value);
      if (match?.[1] === "number") sort.value = KINDS[1];
      else if (match?.[1] === "boolean") sort.value = KINDS[2];
    }
    if (name) usual();
  }
  for (const [name, value] of Object.entries(field.value ?? {})) add(name, value);

  const element = h("fieldset", { class: "field" }, h("legend", null, field.label), field.hint && h("small", { class: "hint" }, field.hint), rows,
    h("datalist", { id: list }, known.map(([name]) => h("option", { value: name }))),
    h("div", { class: "chips" }, button("Add", () => add("", "", true), { kind: "small", icon: "plus" }),
      known.slice(0, 6).map(([name, kind, text]) => button(text ?? name, () => add(name, kind === "boolean" ? true : "", true), { kind: "chip", title: name }))));

  const read = () => {
    const found = {};
    for (const row of rows.children) {
      const [key, held, sort] = row.querySelectorAll("input, select");
      if (!key.value) continue;
      found[key.value] = valueOf(key.value, held.value, sort.value);
    }
    return found;
  };
  return [element, read];
}

function valueOf(name, text, kind) {
  if (kind === KINDS[1]) {
    const number = Number(text);
    if (text.trim() === "" || Number.isNaN(number)) throw new Error(`“${name}” must be a number, and “${text}” is none.`);
    return number;
  }
  if (kind === KINDS[2]) return text.trim().toLowerCase() === "true";
  if (kind === KINDS[3]) {
    try {
      return JSON.parse(text);
    } catch {
      throw new Error(`“${name}” must be JSON, such as ["a", "b"].`);
    }
  }
  return text;
}
