// What the broker pushes: one EventSource for all that a page watches. It comes back by itself and says when it is away.
// A tab that nobody looks at is not pushed anything.

import { alive, get } from "./api.js";

const WAITS_MS = [500, 1000, 2000, 4000, 8000];
/** As many paths as one connection may watch. */
const PATHS_MAX = 12;

export class Live {
  /** `said(state)` hears "on", "off", "waiting" or "paused"; `gone()` that the login has ended. */
  constructor(said, gone) {
    this.said = said;
    this.gone = gone;
    this.watched = new Map();
    this.source = null;
    this.timer = 0;
    this.tries = 0;
    this.state = "";
    document.addEventListener("visibilitychange", () => (document.hidden ? this.pause() : this.resume()));
    addEventListener("online", () => this.resume());
  }

  /** Watch these paths instead of those before: a map of path to `(body, status) => …`. */
  watch(wanted) {
    const same = wanted.size === this.watched.size && [...wanted.keys()].every((path) => this.watched.has(path));
    this.watched = wanted;
    if (same && this.source) return;
    this.tries = 0;
    this.connect();
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  connect() {
    this.close();
    if (!this.watched.size || document.hidden) return;
    this.tell(this.tries ? "off" : "waiting");
    const paths = [...this.watched.keys()].slice(0, PATHS_MAX);
    const source = new EventSource(`/api/live?${paths.map((path) => `path=${encodeURIComponent(path)}`).join("&")}`);
    this.source = source;
    source.onopen = () => {
      this.tries = 0;
      this.tell("on");
    };
    source.addEventListener("change", (event) => {
      const { path, status, body } = JSON.parse(event.data);
      this.tell("on");
      this.watched.get(path)?.(body, status);
    });
    source.onerror = () => {
      if (source !== this.source) return;
      this.close();
      this.tell("off");
      this.again();
    };
  }

  again() {
    const wait = WAITS_MS[Math.min(this.tries, WAITS_MS.length - 1)];
    this.tries += 1;
    this.timer = setTimeout(async () => {
      if (!(await alive())) return this.gone();
      this.connect();
    }, wait * (0.8 + 0.4 * Math.random()));
  }

  /** Ask once for everything that is watched: after a change, so that its effect is seen at once. */
  refresh() {
    for (const [path, act] of this.watched) get(path).then((body) => act(body, 200), (error) => act({ reason: error.message }, error.status));
  }

  pause() {
    this.close();
    this.tell("paused");
  }

  resume() {
    if (document.hidden || !this.watched.size) return;
    this.tries = 0;
    this.connect();
  }

  tell(state) {
    if (state === this.state) return;
    this.state = state;
    this.said(state);
  }
}
