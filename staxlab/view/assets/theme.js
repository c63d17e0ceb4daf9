// A page of its own has no host to say which theme is on: it follows the reader's system until the reader says otherwise.
(() => {
  "use strict";
  const button = document.createElement("button");
  button.type = "button";
  button.className = "sx-theme";
  const dark = () =>
    document.documentElement.dataset.sxTheme
      ? document.documentElement.dataset.sxTheme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
  const label = () => {
    button.textContent = dark() ? "\u2600 light" : "\u263e dark";
    button.setAttribute("aria-label", dark() ? "Switch to the light theme" : "Switch to the dark theme");
  };
  button.addEventListener("click", () => {
    document.documentElement.dataset.sxTheme = dark() ? "light" : "dark";
    label();
  });
  label();
  document.querySelector(".sx-page main")?.prepend(button);
})();
