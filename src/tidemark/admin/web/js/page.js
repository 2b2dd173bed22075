// One open page: what it watches, what it does every so often, and that all of that ends when another is opened.

import { ApiError, get, sentence, withQuery } from "./api.js";
import { fill, h } from "./dom.js";
import { attempt, empty, link, notice } from "./ui.js";

export class Page {
  constructor(shell, { params, query }) {
    this.shell = shell;
    this.params = params;
    this.query = query;
    this.root = shell.content;
    this.watches = [];
    this.timers = [];
    /** What could not be asked for just now, and why. */
    this.troubles = new Map();
    this.trouble = h("div", { class: "trouble" });
    this.closed = false;
  }

  get session() {
    return this.shell.session;
  }

  /** The virtual host that was chosen at the top, or "" for all of them. */
  get vhost() {
    return this.shell.vhost;
  }

  /** /queues, or /queues/<the chosen virtual host>. */
  scoped(path) {
    return this.vhost ? `${path}/${encodeURIComponent(this.vhost)}` : path;
  }

  show(...children) {
    if (!this.closed) fill(this.root, this.trouble, children);
  }

  /** Ask for a path now and hear of every change: `draw(body)`; `fail(words, status)` when it is refused. */
  watch(path, draw, fail = (words, status, one) => this.fail(words, status, one)) {
    const one = {
      path,
      heard: (body, status) => {
        if (this.closed) return;
        if (status >= 200 && status < 300) {
          if (this.troubles.delete(one)) this.drawTrouble();
          draw(body);
        } else fail(sentence(status, body), status, one);
      },
      /** Watch another path with the same eyes: another page of a list. */
      change: (other) => {
        if (other === one.path) return;
        one.path = other;
        this.look(one);
        this.listen();
      },
    };
    this.watches.push(one);
    this.look(one);
    if (this.opened) this.listen();
    return one;
  }

  async look(one) {
    const asked = one.path;
    try {
      const body = await get(asked);
      if (asked === one.path) one.heard(body, 200);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      if (asked === one.path) one.heard({ reason: error.message }, error.status);
    }
  }

  listen() {
    if (!this.closed) this.shell.listen(this.watches);
  }

  refresh() {
    for (const one of this.watches) this.look(one);
  }

  /** Change something, say what came of it, and show the effect: here, or at another address if this page has lost its object. */
  async act(change, done, next = null) {
    const well = await attempt(change, done);
    if (well && next === null) this.refresh();
    else if (well) location.hash = next;
    return well;
  }

  every(ms, act) {
    this.timers.push(setInterval(act, ms));
  }

  /** Put values into the address without opening the page anew. */
  remember(values) {
    Object.assign(this.query, values);
    const path = location.hash.slice(1).split("?")[0];
    history.replaceState(null, "", `#${withQuery(path, this.query)}`);
  }

  /** What is not there, or not for this user, is the end of the page; anything else may pass. */
  fail(words, status, one) {
    if (![401, 403, 404, 405].includes(status)) {
      this.troubles.set(one, words);
      this.drawTrouble();
      return;
    }
    this.show(notice("bad", words), empty("This cannot be shown", "It may have been deleted, or your user may not see it.", link("#/", "To the overview")));
  }

  drawTrouble() {
    fill(this.trouble, [...new Set(this.troubles.values())].map((words) => notice("bad", words)));
  }

  close() {
    this.closed = true;
    this.timers.forEach(clearInterval);
    this.watches = [];
  }
}
