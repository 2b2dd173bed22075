// Where everything begins: who is logged in, the frame around all pages, and which page the address names.

import { del, get, onLoggedOut } from "./api.js";
import { fill } from "./dom.js";
import { openLogin } from "./login.js";
import { Shell } from "./shell.js";
import { say } from "./ui.js";

const root = document.getElementById("root");
let shell = null;

async function begin() {
  try {
    enter(await get("/whoami"));
  } catch (error) {
    leave(error.status === 401 ? "" : error.message);
  }
}

function enter(session) {
  fill(root);
  shell = new Shell(root, session, logOut);
  shell.start();
}

function leave(words = "") {
  shell?.stop();
  shell = null;
  openLogin(root, words, enter);
}

async function logOut() {
  try {
    await del("/login");
  } catch (error) {
    say(error.message, "bad");
    return;
  }
  leave();
}

onLoggedOut(() => shell && leave("Your login has ended. Log in again to go on where you were."));

document.querySelector(".skip").addEventListener("click", (event) => {
  // The address names the page; a link into the page must not change it.
  event.preventDefault();
  const content = document.getElementById("content");
  content?.focus();
  content?.scrollIntoView();
});

begin();
