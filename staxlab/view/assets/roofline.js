// A roofline: what has data-words says it in the line below the picture when the pointer or the focus comes to it, and the
// entries of the list of ceilings get a box that takes the line of the same number away. Without this script everything is
// drawn, and titles and the list hold the numbers.
(() => {
  "use strict";
  if (window.staxlabRoofline) {
    window.staxlabRoofline.scan();
    return;
  }

  function start(figure) {
    const said = figure.querySelector(".sx-roof-words");
    for (const part of figure.querySelectorAll("[data-words]")) {
      const tell = () => { said.textContent = part.dataset.words; };
      part.addEventListener("mouseenter", tell);
      part.addEventListener("focus", tell);
    }
    for (const entry of figure.querySelectorAll("li[data-ceiling]")) {
      const label = document.createElement("label");
      const box = document.createElement("input");
      box.type = "checkbox";
      box.checked = true;
      label.append(box, ...entry.childNodes);
      entry.append(label);
      box.addEventListener("change", () => {
        for (const line of figure.querySelectorAll(`g[data-ceiling="${entry.dataset.ceiling}"]`)) {
          line.style.display = box.checked ? "" : "none";
        }
      });
    }
    figure.classList.add("sx-live");
  }

  function scan() {
    for (const figure of document.querySelectorAll(".sx-roofline:not(.sx-live)")) start(figure);
  }

  window.staxlabRoofline = { scan };
  scan();
})();
