// Tables that live: rows have keys, and only the cells that changed are touched, so focus and selection stay where they are.
// On a phone a row becomes a card, by the labels that each cell carries.

import { append, fill, freshId, h, icon } from "./dom.js";
import { empty, notice, skeleton } from "./ui.js";

/**
 * columns: [{ name, label, of(item) → anything that JSON can hold, cell?(value, item) → text, node or array, number?, sort?, title? }]
 * options: key(item) → text, none: node when there are no rows, sort: {by, down}, onSort(by)
 */
export function table(label, columns, { key, none = empty("Nothing here yet", null), sort = null, onSort = null } = {}) {
  const head = h("tr");
  const rows = h("tbody");
  const id = freshId("table");
  const node = h("div", { class: "table-wrap" });
  const whole = h("table", { "aria-label": label, id }, h("thead", null, head), rows);
  const made = new Map();
  drawHead(sort);
  fill(node, skeleton(5));

  function drawHead(order) {
    fill(head, columns.map((column) => {
      const sorted = order && order.by === column.sort && column.sort;
      const props = { scope: "col", class: column.number ? "number" : "", "aria-sort": sorted ? (order.down ? "descending" : "ascending") : null, title: column.title };
      if (!column.sort || !onSort) return h("th", props, column.label || h("span", { class: "unseen" }, "Actions"));
      return h("th", props, h("button", { type: "button", class: `sort ${sorted ? (order.down ? "down" : "up") : ""}`, on: { click: () => onSort(column.sort) } }, column.label));
    }));
  }

  function rowFor(name) {
    let row = made.get(name);
    if (!row) {
      row = { node: h("tr"), signs: [], cells: columns.map((column) => h("td", { class: `${column.number ? "number" : ""} ${column.class ?? ""}`, data: { label: column.label } })) };
      append(row.node, row.cells);
      made.set(name, row);
    }
    return row;
  }

  return {
    node,
    sort: drawHead,
    /** These rows, in this order. */
    show(items) {
      if (!items.length) {
        made.clear();
        fill(rows);
        if (node.firstChild !== none) fill(node, none);
        return;
      }
      if (whole.parentNode !== node) fill(node, whole);
      const focused = rows.contains(document.activeElement) ? document.activeElement : null;
      const wanted = new Set();
      let place = rows.firstChild;
      for (const item of items) {
        const name = key(item);
        if (wanted.has(name)) continue;
        wanted.add(name);
        const row = rowFor(name);
        columns.forEach((column, index) => {
          const value = column.of(item);
          const sign = JSON.stringify(value) ?? "";
          if (row.signs[index] === sign) return;
          row.signs[index] = sign;
          fill(row.cells[index], column.cell ? column.cell(value, item) : value ?? "");
        });
        if (row.node === place) place = place.nextSibling;
        else rows.insertBefore(row.node, place);
      }
      for (const [name, row] of made) {
        if (wanted.has(name)) continue;
        row.node.remove();
        made.delete(name);
      }
      if (focused && document.activeElement !== focused && focused.isConnected) focused.focus();
    },
    fail(words) {
      fill(node, notice("bad", words));
    },
  };
}

/** Where we are in a long list, and how to go elsewhere. `go(page)`, `resize(size)`. */
export function pager(go, resize) {
  const node = h("nav", { class: "pager", "aria-label": "Parts of the list" });
  let last = "";
  return {
    node,
    show({ page, page_count: pages, page_size: size, filtered_count: found, item_count: here, total_count: all }) {
      const sign = JSON.stringify([page, pages, size, found, all, here]);
      if (sign === last) return;
      last = sign;
      const step = (to, sign, label, shortcut) => h("button", { type: "button", class: "button small", "aria-label": label, "aria-keyshortcuts": shortcut, disabled: to < 1 || to > pages || to === page, on: { click: () => go(to) } }, icon(sign));
      const first = here ? (page - 1) * size + 1 : 0;
      const grouped = (number) => new Intl.NumberFormat("en-GB").format(number ?? 0);
      const sizes = h("select", { "aria-label": "Rows a page", on: { change: (event) => resize(Number(event.target.value)) } },
        [...new Set([25, 50, 100, 500, size])].sort((a, b) => a - b).map((one) => h("option", { value: one, selected: one === size }, `${one} a page`)));
      fill(node,
        h("span", { class: "pager-words" }, `${grouped(first)}–${grouped(first ? first + here - 1 : 0)} of ${grouped(found)}`, found !== all ? h("span", { class: "muted" }, ` (${grouped(all)} in all)`) : null),
        h("span", { class: "pager-steps" }, step(page - 1, "left", "Previous page", "["), h("span", { class: "pager-page" }, `Page ${grouped(page)} of ${grouped(Math.max(1, pages))}`), step(page + 1, "right", "Next page", "]")),
        sizes);
    },
  };
}

/** A list of which the API gave all, in the form of one that it gave in pages. */
export function paged(body, { page, page_size: size, name, sort, sort_reverse: down }) {
  if (!Array.isArray(body)) return body;
  let items = body;
  if (name) items = items.filter((item) => String(item.name ?? "").toLowerCase().includes(name.toLowerCase()));
  if (sort) {
    const value = (item) => sort.split(".").reduce((part, word) => part?.[word], item) ?? "";
    items = [...items].sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * (down ? -1 : 1));
  }
  const shown = items.slice((page - 1) * size, page * size);
  return { items: shown, page, page_size: size, page_count: Math.ceil(items.length / size), item_count: shown.length, filtered_count: items.length, total_count: body.length };
}
