// Users, and what each may do where.

import { at, del, get, put } from "../api.js";
import { fill, h } from "../dom.js";
import { openForm } from "../forms.js";
import { shownName } from "../format.js";
import { to } from "../routes.js";
import { table } from "../table.js";
import { ask, badge, button, card, empty, heading, link, sheet, state } from "../ui.js";
import { longList } from "./lists.js";

const TAGS = [
  ["administrator", "administrator: everything, users and policies included"],
  ["monitoring", "monitoring: sees everything, of all virtual hosts"],
  ["policymaker", "policymaker: policies of its virtual hosts"],
  ["management", "management: this page, for its own virtual hosts"],
];
const PATTERN_HINT = "A regular expression over names; .* is all, ^$ is none.";

const tagsOf = (one) => (Array.isArray(one.tags) ? one.tags : String(one.tags ?? "").split(",").filter(Boolean));

export function openUsers(page) {
  const make = () => userForm(page, null);
  const list = longList(page, {
    path: "/users",
    label: "Users",
    key: (one) => one.name,
    none: empty("No user is like that", "Your search finds none."),
    columns: [
      { name: "name", label: "Name", of: (one) => one.name, cell: (name) => link(to("users", name), shownName(name)), sort: "name", class: "name-cell" },
      { name: "tags", label: "Tags", of: tagsOf, cell: (tags) => (tags.length ? h("span", { class: "badges" }, tags.map((tag) => badge(tag, tag === "administrator" ? "accent" : ""))) : h("span", { class: "muted" }, "none: AMQP only")) },
      { name: "password", label: "Password", of: (one) => Boolean(one.password_hash), cell: (has) => (has ? state("set", "good") : state("none: cannot log in with one", "warn")) },
    ],
  });
  page.show(heading("Users", { actions: [button("Add a user", make, { kind: "primary", icon: "plus", shortcut: "n" })] }), sheet("Users", list.toolbar, list.node, list.pager));
}

function userForm(page, one) {
  openForm(one ? `Change ${shownName(one.name)}` : "Add a user", {
    action: one ? "Save" : "Add",
    fields: [
      !one && { name: "name", label: "Name", required: true },
      { name: "password", label: one ? "New password (leave empty to keep the old one)" : "Password", kind: "password", required: !one, autocomplete: "new-password" },
      { name: "tags", label: "What it may see here", kind: "choices", options: TAGS, value: one ? tagsOf(one) : [] },
    ],
    submit: async ({ name, password, tags }) => {
      const wanted = { tags: tags.join(",") };
      if (password) wanted.password = password;
      await put(`/users${at(one?.name ?? name)}`, wanted);
      if (one) page.refresh();
      else location.hash = to("users", name);
    },
  });
}

export function openUser(page) {
  const [name] = page.params;
  const path = `/users${at(name)}`;
  const note = h("span", { class: "badges" });
  let current = null;
  const cells = (fields) => fields.map(([field, label]) => ({ name: field, label, of: (one) => one[field], cell: (text) => h("code", null, text === "" ? "(none)" : shownName(text)) }));
  const rights = table("Permissions", [
    { name: "vhost", label: "Virtual host", of: (one) => one.vhost, class: "name-cell" },
    ...cells([["configure", "Configure"], ["write", "Write"], ["read", "Read"]]),
    { name: "act", label: "", of: (one) => [one.configure, one.write, one.read], cell: (_, one) => [button("Change", () => rightsForm(one), { kind: "small" }), button("Clear", () => clear(one), { kind: "small" })], class: "actions-cell" },
  ], { key: (one) => one.vhost, none: empty("It may not do anything yet", "Give it permissions in a virtual host.") });
  const topics = table("Topic permissions", [
    { name: "vhost", label: "Virtual host", of: (one) => one.vhost, class: "name-cell" },
    { name: "exchange", label: "Exchange", of: (one) => one.exchange, cell: shownName },
    ...cells([["write", "Write"], ["read", "Read"]]),
    { name: "act", label: "", of: (one) => [one.write, one.read], cell: (_, one) => button("Clear", () => page.act(() => del(`/topic-permissions${at(one.vhost, one.user)}?exchange=${encodeURIComponent(one.exchange)}`), "Cleared."), { kind: "small" }), class: "actions-cell" },
  ], { key: (one) => `${one.vhost}\n${one.exchange}`, none: empty("No topic permission", "Without one, routing keys are not looked at.") });

  page.show(
    heading(shownName(name), { above: link("#/users", "Users"), note, actions: [button("Change", () => current && userForm(page, current)), button("Delete", remove, { kind: "danger" })] }),
    card("Permissions", { actions: button("Set", () => rightsForm(null), { kind: "small", icon: "plus", shortcut: "n" }) }, rights.node),
    card("Topic permissions", { actions: button("Set", topicForm, { kind: "small", icon: "plus" }) }, topics.node));

  page.watch(path, (one) => {
    current = one;
    fill(note, tagsOf(one).map((tag) => badge(tag, tag === "administrator" ? "accent" : "")), tagsOf(one).length ? null : badge("no tags"));
  });
  page.watch(`${path}/permissions`, (list) => rights.show(list), (words) => rights.fail(words));
  page.watch(`${path}/topic-permissions`, (list) => topics.show(list), (words) => topics.fail(words));

  const hostChoice = (value) => ({ name: "vhost", label: "Virtual host", kind: "select", options: page.shell.vhosts ?? ["/"], value: value ?? "/" });

  function rightsForm(one) {
    openForm(one ? `Permissions in ${one.vhost}` : "Permissions", {
      fields: [
        !one && hostChoice(),
        { name: "configure", label: "May declare and delete", value: one?.configure ?? ".*", hint: PATTERN_HINT },
        { name: "write", label: "May publish to", value: one?.write ?? ".*" },
        { name: "read", label: "May read from", value: one?.read ?? ".*" },
      ],
      submit: async ({ vhost, ...wanted }) => {
        await put(`/permissions${at(one?.vhost ?? vhost, name)}`, wanted);
        page.refresh();
      },
    });
  }

  function topicForm() {
    openForm("Topic permissions", {
      fields: [
        hostChoice(),
        { name: "exchange", label: "Topic exchange", value: "amq.topic", required: true },
        { name: "write", label: "May publish with routing keys", value: ".*", hint: PATTERN_HINT },
        { name: "read", label: "May bind with routing keys", value: ".*" },
      ],
      submit: async ({ vhost, ...wanted }) => {
        await put(`/topic-permissions${at(vhost, name)}`, wanted);
        page.refresh();
      },
    });
  }

  async function clear(one) {
    if (!(await ask(`Clear the permissions of ${shownName(name)} in ${one.vhost}?`, "It can no longer enter this virtual host.", { confirm: "Clear" }))) return;
    page.act(() => del(`/permissions${at(one.vhost, name)}`), "Cleared.");
  }

  async function remove() {
    if (!(await ask(`Delete ${shownName(name)}?`, "The user and its permissions are gone then; its connections are not closed."))) return;
    page.act(() => del(path), `${shownName(name)} is deleted.`, "#/users");
  }
}

export const everyUser = async () => {
  const found = await get("/users");
  return (Array.isArray(found) ? found : found.items).map((one) => one.name);
};
