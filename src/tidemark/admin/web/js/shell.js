// The frame around every page: navigation, virtual host, state of the connection, theme, shortcuts, and the router.

import { get, loggedOut, onStanding } from "./api.js";
import { fill, h, icon, setText } from "./dom.js";
import { Live } from "./live.js";
import { logo } from "./logo.js";
import { Page } from "./page.js";
import { PLACES, find, onMember } from "./routes.js";
import { Shortcuts, showHelp } from "./shortcuts.js";
import { button, empty, link, notice } from "./ui.js";

const LIVE_WORDS = {
  on: ["Live", "good", "The broker pushes changes to this page."],
  waiting: ["Connecting…", "quiet", "Waiting for the broker."],
  off: ["Not connected", "bad", "What you see may be old. The page tries again by itself."],
  paused: ["Paused", "quiet", "Nobody looks at this tab; it goes on when you do."],
};
const THEMES = ["system", "light", "dark"];

export class Shell {
  constructor(root, session, logOut) {
    this.session = { ...session, tags: Array.isArray(session.tags) ? session.tags : String(session.tags ?? "").split(",") };
    this.vhost = sessionStorage.getItem("tidemark.vhost") ?? "";
    this.page = null;
    this.members = [];
    this.live = new Live((state) => this.showLive(state), loggedOut);
    this.shortcuts = new Shortcuts(this);
    this.navigate = this.navigate.bind(this);

    this.banner = h("div", { class: "banners" });
    this.offline = h("div");
    this.alarm = h("div");
    this.follower = h("div");
    this.banner.append(this.offline, this.alarm, this.follower);
    this.content = h("main", { id: "content", tabindex: "-1" });
    this.liveState = h("span", { class: "live quiet", role: "status" }, h("i", { class: "dot", "aria-hidden": "true" }), h("span"));
    this.node = h("span", { class: "node-name" });
    this.hosts = h("select", { "aria-label": "Virtual host", class: "vhost-choice", on: { change: (event) => this.chooseVhost(event.target.value) } });
    this.theme = button("", () => this.nextTheme(), { kind: "plain", icon: "system" });
    this.nav = h("nav", { class: "nav", "aria-label": "Pages" });
    this.menu = button("", () => this.toggleMenu(), { kind: "plain menu-button", icon: "menu", label: "Menu" });
    this.menu.setAttribute("aria-expanded", "false");
    this.side = h("aside", { class: "side", "aria-label": "Menu" },
      h("a", { class: "brand", href: "#/" }, logo(), h("span", null, "Tidemark")),
      this.nav,
      h("div", { class: "side-foot" },
        h("span", { class: "who" }, icon("users"), h("span", { class: "who-name" }, this.session.name)),
        button("", logOut, { kind: "plain", icon: "out", label: "Log out", title: "Log out" })));
    root.append(
      h("div", { class: "shell" }, this.side, h("button", { type: "button", class: "veil", "aria-label": "Close the menu", tabindex: "-1", on: { click: () => this.toggleMenu(false) } }),
        h("div", { class: "stage" },
          h("header", { class: "top" }, this.menu, this.node, h("span", { class: "grow" }), this.liveState,
            this.hosts, this.theme, button("", showHelp, { kind: "plain help-button", icon: "help", label: "Shortcuts", title: "Shortcuts (?)", shortcut: "?" })),
          this.banner, this.content)));
    this.drawNav("");
    this.drawTheme();
  }

  start() {
    addEventListener("hashchange", this.navigate);
    this.shortcuts.start();
    onStanding((standing) => this.showStanding(standing));
    this.loadHosts();
    this.loadMembers();
    this.navigate();
  }

  stop() {
    removeEventListener("hashchange", this.navigate);
    onStanding(() => {});
    this.shortcuts.stop();
    this.page?.close();
    this.live.close();
    for (const open of document.querySelectorAll("dialog")) open.close();
  }

  // What may be seen ----------------------------------------------------------------------------------------

  is(...tags) {
    return this.session.tags.some((tag) => tags.includes(tag));
  }

  get seesAll() {
    return this.is("monitoring", "administrator");
  }

  // Pages ---------------------------------------------------------------------------------------------------

  async navigate() {
    const { place, params, query } = find(location.hash.slice(1));
    this.toggleMenu(false);
    for (const open of document.querySelectorAll("dialog[open]")) open.close();
    this.page?.close();
    this.page = new Page(this, { params, query });
    this.drawNav(place?.nav ?? "");
    // The link to the leader leads to the page that is open.
    this.follower.dataset.sign = "anew";
    if (this.standing) this.showStanding(this.standing);
    scrollTo(0, 0);
    if (!place) {
      document.title = "Not found · Tidemark";
      this.page.show(empty("There is no such page", "The address may be mistyped.", link("#/", "To the overview")));
      this.listen([]);
      return;
    }
    const words = params.length ? `${params[params.length - 1]} · ${place.title}` : place.title;
    document.title = `${words} · Tidemark`;
    place.open(this.page);
    this.page.opened = true;
    this.page.listen();
    if (this.moved) this.content.querySelector("h1")?.focus({ preventScroll: true });
    this.moved = true;
  }

  /** Watch what the page wants, and what the frame itself shows. */
  listen(watches) {
    const wanted = new Map();
    const add = (path, act) => {
      const before = wanted.get(path);
      wanted.set(path, before ? (body, status) => { before(body, status); act(body, status); } : act);
    };
    for (const one of watches) add(one.path, one.heard);
    add("/tidemark/standing", (body, status) => status === 200 && this.showStanding(body));
    add("/health/checks/alarms", (body, status) => this.showAlarm(body, status));
    this.live.watch(wanted);
  }

  drawNav(current) {
    const group = (entries) => entries.filter((place) => !place.needs || this.is(...place.needs)).map((place) =>
      h("a", { href: `#${place.path}`, "aria-current": place.nav === current ? "page" : null }, icon(place.nav), h("span", null, place.title)));
    const admin = group(PLACES.admin);
    fill(this.nav, group(PLACES.broker), h("div", { class: "nav-head" }, "Beyond queues"), group(PLACES.own), admin.length ? h("div", { class: "nav-head" }, "Administration") : null, admin);
  }

  toggleMenu(open = !this.side.classList.contains("open")) {
    this.side.classList.toggle("open", open);
    this.menu.setAttribute("aria-expanded", String(open));
  }

  // The top -------------------------------------------------------------------------------------------------

  async loadHosts() {
    let hosts = [];
    try {
      hosts = await get("/vhosts");
    } catch {
      // Without the list there is no choice; the page says itself what is wrong.
    }
    const names = (Array.isArray(hosts) ? hosts : hosts.items ?? []).map((host) => host.name).sort();
    this.vhosts = names;
    if (this.vhost && !names.includes(this.vhost)) this.vhost = "";
    fill(this.hosts, h("option", { value: "", selected: !this.vhost }, "All vhosts"), names.map((name) => h("option", { value: name, selected: name === this.vhost }, name)));
    this.hosts.hidden = names.length < 2;
  }

  chooseVhost(name) {
    this.vhost = name;
    sessionStorage.setItem("tidemark.vhost", name);
    this.navigate();
  }

  showLive(state) {
    const [words, tone, title] = LIVE_WORDS[state];
    this.liveState.className = `live ${tone}`;
    this.liveState.title = title;
    setText(this.liveState.lastChild, words);
    clearTimeout(this.offlineTimer);
    if (state === "off") {
      // A blink while the page changes is no news.
      this.offlineTimer = setTimeout(() => fill(this.offline, notice("warn", h("b", null, "Not connected. "), "What you see may be old; the page tries again by itself.", this.elsewhere())), 1500);
    } else if (state === "on") fill(this.offline);
  }

  /** Links to the other members: one of them may answer. */
  elsewhere() {
    const others = this.members.filter((one) => one.admin && one.name !== this.standing?.name);
    if (!others.length) return null;
    return [" Other members: ", others.map((one, index) => [index ? ", " : "", link(onMember(one.admin), one.name)]), "."];
  }

  /** Who answers, and who leads if it is another: on every page, because nothing can be changed here then. */
  showStanding(standing) {
    this.standing = standing;
    setText(this.node, standing.name);
    const sign = standing.leads ? "" : JSON.stringify(standing);
    if ((this.follower.dataset.sign ?? "") === sign) return;
    this.follower.dataset.sign = sign;
    const { name, leader, leader_admin: admin } = standing;
    fill(this.follower, standing.leads ? null : notice("info", h("b", null, `${name} follows`), leader
      ? [`: ${leader} leads, and changes are made there. `, admin ? link(onMember(admin), `Open ${leader}`) : null]
      : ": no member leads now. Nothing can be changed until one does."));
  }

  async loadMembers() {
    if (!this.seesAll) return;
    try {
      this.knowMembers(await get("/members"));
    } catch {
      // They are for links to others only.
    }
  }

  /** Where the members are, so that there are links when this one is away. */
  knowMembers(members) {
    this.members = members;
  }

  showAlarm(body, status) {
    if (status === 200 || status === 401) fill(this.alarm);
    else fill(this.alarm, notice("bad", h("b", null, "Alarm. "), body?.reason ?? "The broker blocks publishers."));
  }

  // Theme ---------------------------------------------------------------------------------------------------

  nextTheme() {
    const now = localStorage.getItem("tidemark.theme") ?? "system";
    const next = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
    if (next === "system") localStorage.removeItem("tidemark.theme");
    else localStorage.setItem("tidemark.theme", next);
    dispatchEvent(new Event("tidemark-theme"));
    this.drawTheme();
  }

  drawTheme() {
    const now = localStorage.getItem("tidemark.theme") ?? "system";
    const words = { system: "Theme: as the system", light: "Theme: light", dark: "Theme: dark" }[now];
    fill(this.theme, icon({ system: "system", light: "sun", dark: "moon" }[now]));
    this.theme.setAttribute("aria-label", words);
    this.theme.title = `${words} (t)`;
  }
}
