// Virtual hosts: rooms with queues, exchanges and permissions of their own.

import { at, del, put } from "../api.js";
import { h } from "../dom.js";
import { openForm } from "../forms.js";
import { count, shownName } from "../format.js";
import { to } from "../routes.js";
import { table } from "../table.js";
import { ask, button, card, empty, factList, figure, heading, link, sheet } from "../ui.js";
import { longList } from "./lists.js";

export function openVhosts(page) {
  const administrator = page.shell.is("administrator");
  const list = longList(page, {
    path: "/vhosts",
    label: "Virtual hosts",
    key: (one) => one.name,
    none: empty("No virtual host is like that", "Your search finds none."),
    columns: [
      { name: "name", label: "Name", of: (one) => one.name, cell: (name) => link(to("vhosts", name), shownName(name)), sort: "name", class: "name-cell" },
      { name: "description", label: "Description", of: (one) => one.description ?? "", cell: shownName, class: "wide-cell" },
      { name: "ready", label: "Ready", of: (one) => one.messages_ready, cell: figure(count), number: true, sort: "messages_ready" },
      { name: "unacked", label: "Unacked", of: (one) => one.messages_unacknowledged, cell: figure(count), number: true, sort: "messages_unacknowledged" },
      { name: "total", label: "Total", of: (one) => one.messages, cell: figure(count), number: true, sort: "messages" },
    ],
  });
  const make = () => openForm("Add a virtual host", {
    action: "Add",
    fields: [{ name: "name", label: "Name", required: true }, { name: "description", label: "Description" }],
    submit: async ({ name, description }) => {
      await put(`/vhosts${at(name)}`, { description });
      page.shell.loadHosts();
      page.refresh();
    },
  });
  page.show(heading("Virtual hosts", { actions: administrator ? [button("Add a virtual host", make, { kind: "primary", icon: "plus", shortcut: "n" })] : [] }), sheet("Virtual hosts", list.toolbar, list.node, list.pager));
}

export function openVhost(page) {
  const [name] = page.params;
  const path = `/vhosts${at(name)}`;
  const administrator = page.shell.is("administrator");
  const facts = factList("Facts of the virtual host");
  const rights = table("Permissions", [
    { name: "user", label: "User", of: (one) => one.user, cell: (user) => (administrator ? link(to("users", user), shownName(user)) : shownName(user)), class: "name-cell" },
    ...[["configure", "Configure"], ["write", "Write"], ["read", "Read"]].map(([field, label]) => ({ name: field, label, of: (one) => one[field], cell: (text) => h("code", null, text === "" ? "(none)" : shownName(text)) })),
  ], { key: (one) => one.user, none: empty("Nobody may enter", "Give a user permissions here.") });
  page.show(
    heading(shownName(name), { above: link("#/vhosts", "Virtual hosts"), actions: administrator ? [button("Delete", remove, { kind: "danger" })] : [] }),
    card("Facts", facts.node),
    administrator ? card("Who may enter", { actions: link("#/users", "Users") }, rights.node) : null);
  page.watch(path, (one) => facts.show([["Description", one.description || "none"], ["Messages", count(one.messages)], ["Ready", count(one.messages_ready)], ["Unacknowledged", count(one.messages_unacknowledged)],
    one.default_queue_type && ["Default queue type", one.default_queue_type]]));
  if (administrator) page.watch(`${path}/permissions`, (list) => rights.show(list), (words) => rights.fail(words));

  async function remove() {
    if (!(await ask(`Delete ${shownName(name)}?`, "All of its queues, streams and exchanges with all messages, and all permissions in it, are gone then. They do not come back.", { typed: name }))) return;
    if (await page.act(() => del(path), `${shownName(name)} is deleted.`, "#/vhosts")) page.shell.loadHosts();
  }
}
