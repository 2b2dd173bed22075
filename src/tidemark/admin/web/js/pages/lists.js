// A long list: search, sort and paging, all done by the broker; the address remembers where one was.

import { withQuery } from "../api.js";
import { freshId, h } from "../dom.js";
import { paged, pager, table } from "../table.js";

const TYPING_MS = 250;

/**
 * A list of the API with its table. options: path, label, columns, key, none, order (the sort to begin with), down,
 * regex (offer regular expressions), also(body): hears each answer.
 */
export function longList(page, { path, label, columns, key, none, order = "name", down = false, regex = true, also = () => {}, extra = {} }) {
  const asked = {
    page: Math.max(1, Number(page.query.page) || 1),
    page_size: Math.min(500, Math.max(1, Number(page.query.size ?? localStorage.getItem("tidemark.size")) || 50)),
    name: page.query.name ?? "",
    use_regex: page.query.regex === "1",
    sort: page.query.sort ?? order,
    sort_reverse: page.query.sort ? page.query.down === "1" : down,
  };
  const address = () => withQuery(path, { ...asked, ...extra, use_regex: asked.use_regex ? "true" : "", sort_reverse: asked.sort_reverse ? "true" : "" });
  const rows = table(label, columns, { key, none, sort: { by: asked.sort, down: asked.sort_reverse }, onSort: sortBy });
  const pages = pager((to) => change({ page: to }), (size) => {
    localStorage.setItem("tidemark.size", String(size));
    change({ page_size: size, page: 1 });
  });
  const id = freshId("search");
  let typing = 0;
  const search = h("input", { type: "search", id, placeholder: `Search ${label.toLowerCase()}`, "aria-label": `Search ${label.toLowerCase()}`, value: asked.name, spellcheck: "false", autocomplete: "off", "aria-keyshortcuts": "/", on: { input: () => {
    clearTimeout(typing);
    typing = setTimeout(() => change({ name: search.value, page: 1 }), TYPING_MS);
  } } });
  const pattern = h("label", { class: "choice" }, h("input", { type: "checkbox", checked: asked.use_regex, on: { change: (event) => change({ use_regex: event.target.checked, page: 1 }) } }), "Regular expression");

  function sortBy(column) {
    const again = asked.sort === column;
    // The first click on a number brings the largest to the top, on a name the first.
    change({ sort: column, sort_reverse: again ? !asked.sort_reverse : column !== "name" && column !== "vhost" && column !== "user", page: 1 });
  }

  function change(values) {
    Object.assign(asked, values);
    rows.sort({ by: asked.sort, down: asked.sort_reverse });
    page.remember({ page: asked.page > 1 ? asked.page : "", size: asked.page_size === 50 ? "" : asked.page_size, name: asked.name, regex: asked.use_regex ? "1" : "", sort: asked.sort === order && asked.sort_reverse === down ? "" : asked.sort, down: asked.sort_reverse ? "1" : "" });
    watch.change(address());
  }

  const watch = page.watch(address(), (body) => {
    const shown = paged(body, asked);
    rows.show(shown.items ?? []);
    pages.show(shown);
    also(shown);
    // Whoever deleted the last row of the last page is taken to the one before.
    if (!shown.items?.length && asked.page > 1 && shown.page_count) change({ page: shown.page_count });
  }, (words, status) => {
    if (status === 400 && asked.page > 1) change({ page: 1 });
    else rows.fail(words);
  });
  return { toolbar: h("div", { class: "toolbar", role: "search" }, search, regex && pattern), node: rows.node, pager: pages.node, asked };
}
