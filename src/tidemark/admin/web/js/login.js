// The way in.

import { get, post } from "./api.js";
import { fill, h } from "./dom.js";
import { logo } from "./logo.js";
import { notice } from "./ui.js";

export function openLogin(root, words, enter) {
  document.title = "Log in · Tidemark";
  const problem = h("div", { role: "alert" }, words && notice("warn", words));
  const user = h("input", { id: "user", name: "username", autocomplete: "username", required: true, autocapitalize: "none", spellcheck: "false" });
  const password = h("input", { id: "password", name: "password", type: "password", autocomplete: "current-password", required: true });
  const go = h("button", { type: "submit", class: "button primary large" }, "Log in");

  async function submit(event) {
    event.preventDefault();
    if (!user.value) return user.focus();
    if (!password.value) return password.focus();
    go.disabled = true;
    try {
      await post("/login", { username: user.value, password: password.value });
      const session = await get("/whoami");
      enter(session);
    } catch (error) {
      const text = error.status === 401 ? "That user name and password do not open this broker. A user needs a tag such as “management”, too." : error.message;
      fill(problem, notice("bad", text));
      password.value = "";
      password.focus();
    } finally {
      go.disabled = false;
    }
  }

  fill(root, h("main", { id: "content", class: "login", tabindex: "-1" },
    h("form", { class: "login-card", on: { submit } },
      h("div", { class: "login-logo" }, logo(), h("h1", null, "Tidemark")),
      h("p", { class: "muted" }, "Management of the broker at ", h("b", null, location.host)),
      problem,
      h("label", { class: "field", for: "user" }, h("span", null, "User"), user),
      h("label", { class: "field", for: "password" }, h("span", null, "Password"), password),
      go)));
  user.focus();
}
