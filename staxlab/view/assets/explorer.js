// The stages of an explorer as tabs, up to two beside each other. The stages are <details> elements in the page; what
// stands here only decides which of them are open, in which pane, and draws the buttons. Without this script they
// remain what they are.
(() => {
  "use strict";
  if (window.staxlabExplorer) {
    window.staxlabExplorer.scan();
    return;
  }

  function make(tag, className, text, attributes = {}) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text) element.textContent = text;
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  }

  function start(root) {
    const area = root.querySelector(":scope > .sx-stages");
    const stages = [...area.children].filter((child) => child.dataset.stage);
    const keys = stages.map((stage) => stage.dataset.stage);
    const first = (root.dataset.first || "").split(" ").filter((key) => keys.includes(key));
    const wide = root.getBoundingClientRect().width >= 760;
    const state = { left: first[0] || keys[0], right: wide ? first[1] || "" : "" };

    const bar = make("div", "sx-bar", "", { role: "toolbar", "aria-label": "Stages of the compilation" });
    const previous = make("button", "sx-step", "\u2039", { type: "button", "aria-label": "Previous stage", title: "Previous stage" });
    const next = make("button", "sx-step", "\u203a", { type: "button", "aria-label": "Next stage", title: "Next stage" });
    const tabs = make("span", "sx-tabs");
    const buttons = stages.map((stage, position) => {
      const button = make("button", "sx-tab", "", { type: "button", "data-show": stage.dataset.stage });
      button.append(make("span", "sx-tab-number", String(position + 1)), make("span", "", stage.dataset.title));
      button.append(make("span", "sx-badge", ""));
      button.title = "Show in the left pane (with Shift: beside it)";
      button.addEventListener("click", (event) => {
        if (event.shiftKey) state.right = stage.dataset.stage;
        else state.left = stage.dataset.stage;
        if (state.left === state.right && !event.shiftKey) state.right = "";
        update();
      });
      tabs.append(button);
      return button;
    });
    const beside = make("label", "sx-beside", "beside it: ");
    const select = make("select", "", "", { "aria-label": "Stage shown beside the first" });
    select.append(make("option", "", "nothing", { value: "" }));
    for (const stage of stages) select.append(make("option", "", stage.dataset.title, { value: stage.dataset.stage }));
    select.addEventListener("change", () => {
      state.right = select.value;
      update();
    });
    beside.append(select);
    bar.append(previous, next, tabs, beside);
    root.insertBefore(bar, root.querySelector(":scope > .sx-status") || area);

    const move = (step) => {
      const position = keys.indexOf(state.left) + step;
      if (position < 0 || position >= keys.length) return;
      state.left = keys[position];
      if (state.right === state.left) state.right = "";
      update();
    };
    previous.addEventListener("click", () => move(-1));
    next.addEventListener("click", () => move(1));
    tabs.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const position = buttons.indexOf(document.activeElement);
      if (!step || position < 0) return;
      buttons[(position + step + buttons.length) % buttons.length].focus();
      event.preventDefault();
    });

    function update() {
      if (state.right === state.left) state.right = "";
      root.classList.toggle("sx-two", Boolean(state.right));
      stages.forEach((stage, position) => {
        const key = stage.dataset.stage;
        const pane = key === state.left ? "left" : key === state.right ? "right" : "";
        if (pane) stage.dataset.pane = pane;
        else delete stage.dataset.pane;
        stage.open = Boolean(pane);
        stage.hidden = !pane;
        buttons[position].setAttribute("aria-pressed", String(key === state.left));
        buttons[position].classList.toggle("sx-tab-right", key === state.right);
      });
      const position = keys.indexOf(state.left);
      previous.disabled = position === 0;
      next.disabled = position === keys.length - 1;
      select.value = state.right;
    }

    // A stage that is not shown says on its button how much of it is linked.
    root.addEventListener("staxlab-linked", (event) => {
      stages.forEach((stage, position) => {
        const count = event.detail.get(stage.dataset.stage) || 0;
        const badge = buttons[position].querySelector(".sx-badge");
        badge.textContent = count ? "\u25b8" + count : "";
        badge.title = count ? count + " linked here" : "";
      });
    });
    // The heading of a pane is not a switch while the buttons are there.
    for (const stage of stages) {
      stage.querySelector("summary")?.addEventListener("click", (event) => event.preventDefault());
      stage.querySelector("summary")?.setAttribute("tabindex", "-1");
    }
    root.classList.add("sx-live");
    update();
  }

  function scan() {
    for (const root of document.querySelectorAll(".sx-explorer:not(.sx-live)")) start(root);
  }

  window.staxlabExplorer = { scan };
  scan();
})();
