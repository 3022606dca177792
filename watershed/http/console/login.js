// The form for a token, of servers that have users.

import { h } from "./dom.js";
import { hasToken, state, useToken } from "./data.js";

/** `done`: asks the server again. */
export function login(done) {
  const send = (event) => {
    event.preventDefault();
    const field = document.getElementById("token");
    const given = field.value.trim();
    field.value = "";
    // No other text can be sent in a header, and no token has any.
    useToken(/^[\x21-\x7e]+$/.test(given) ? given : "-");
    done();
  };
  return [h("section", { class: "panel login", "aria-labelledby": "login-title", "data-key": "login" },
    h("h2", { id: "login-title" }, "Log in"),
    h("p", { class: "hint" }, "This server has users. The token is that of one of http.users, or one of the provider in http.oidc; this tab keeps it until it is closed."),
    h("form", { onsubmit: send },
      h("label", { for: "token" }, "Token"),
      h("input", { id: "token", type: "password", autocomplete: "current-password", required: true }),
      h("button", { type: "submit", class: "text-button" }, "Log in")),
    hasToken() && h("p", { class: "message", role: "alert" }, `Refused: ${state.needsToken}.`))];
}
