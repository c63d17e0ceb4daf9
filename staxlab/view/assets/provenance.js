// Links between stages. Every element with data-origins="3 7" lights up together with all others below the same root
// whose origins intersect its own. Pointing shows, clicking or Enter pins, Escape lets go, arrow keys walk through one
// listing or diagram, n and p through everything that is linked. Events are caught at the document, so roots that
// appear later (another cell, a widget) need no set-up of their own.
(() => {
  "use strict";
  if (window.staxlabLinks) {
    window.staxlabLinks.scan();
    return;
  }

  const SELECTOR = "[data-origins]";
  const shown = new WeakMap(); // root -> { element, pinned }
  const HINT =
    "Point at a line or a node to see where it comes from and what became of it. Click or Enter pins, Escape lets go, " +
    "arrow keys move, n and p go through what is linked.";
  const SHORT_HINT = "Point at a line to see what it is linked to.";
  const hintFor = (root) => (root.matches(".sx-explorer, .sx-stepper") ? HINT : SHORT_HINT);

  const rootOf = (element) => element.closest(".sx-root");
  const linkedTarget = (target) => {
    const element = target instanceof Element ? target.closest(SELECTOR) : null;
    return element && rootOf(element) ? element : null;
  };
  const originsOf = (element) => element.dataset.origins.split(" ");
  const isVisible = (element) => element.getClientRects().length > 0;

  function clear(root) {
    for (const element of root.querySelectorAll(".sx-linked, .sx-broad, .sx-here")) {
      element.classList.remove("sx-linked", "sx-broad", "sx-here", "sx-pinned");
      element.removeAttribute("aria-current");
    }
    shown.delete(root);
    report(root, null, []);
  }

  function show(element, pinned) {
    const root = rootOf(element);
    const current = shown.get(root);
    if (current && current.element === element && current.pinned === pinned) return;
    clear(root);
    const wanted = new Set(originsOf(element));
    const found = [...root.querySelectorAll(SELECTOR)].filter((e) => originsOf(e).some((origin) => wanted.has(origin)));
    const broad = broadOf(found, element);
    const linked = found.filter((e) => !broad.has(e));
    for (const other of found) other.classList.add(broad.has(other) ? "sx-broad" : "sx-linked");
    element.classList.add("sx-here");
    if (pinned) {
      element.classList.add("sx-pinned");
      element.setAttribute("aria-current", "true");
    }
    shown.set(root, { element, pinned });
    revealIn(root, element, linked);
    report(root, element, linked);
  }

  // A line that stems from everything (a loop head, a declaration) says little where other lines of the same listing say
  // more: it gets a faint mark only.
  function broadOf(found, element) {
    const groups = new Map();
    for (const other of found) {
      const group = other.closest("[data-group]");
      if (!group) continue;
      if (!groups.has(group)) groups.set(group, []);
      groups.get(group).push(other);
    }
    const broad = new Set();
    for (const members of groups.values()) {
      const sizes = members.map((e) => originsOf(e).length);
      const most = Math.max(...sizes);
      if (most < 3 || Math.min(...sizes) === most) continue;
      members.forEach((member, k) => {
        if (sizes[k] === most && member !== element && !member.contains(element)) broad.add(member);
      });
    }
    return broad;
  }

  // Scroll every pane that holds linked elements, but not the one pointed at, to its first linked element. Only the
  // panes scroll, never the page.
  function revealIn(root, element, linked) {
    const seen = new Set();
    for (const other of linked) {
      const pane = other.closest(".sx-code, .sx-scroll, .sx-stage-body");
      for (let box = pane; box && box !== root; box = box.parentElement) {
        const scrolls = box.scrollHeight > box.clientHeight + 1 || box.scrollWidth > box.clientWidth + 1;
        if (!scrolls || seen.has(box) || box.contains(element)) continue;
        seen.add(box);
        const outer = box.getBoundingClientRect();
        const inner = other.getBoundingClientRect();
        if (inner.top < outer.top || inner.bottom > outer.bottom) {
          box.scrollTop += inner.top - outer.top - Math.min(outer.height / 3, 80);
        }
        if (other.tagName.toLowerCase() === "g" && (inner.left < outer.left || inner.right > outer.right)) {
          box.scrollLeft += inner.left - outer.left - outer.width / 3;
        }
      }
    }
  }

  // "add (line 3) -> %add · aten.add.Tensor · buf0 · fused_add_0 line 12 · 4 assembly lines"
  function report(root, element, linked) {
    const perStage = new Map();
    for (const other of linked) {
      const stage = other.closest("[data-stage]");
      const key = stage ? stage.dataset.stage : "";
      perStage.set(key, (perStage.get(key) || 0) + 1);
    }
    root.dispatchEvent(new CustomEvent("staxlab-linked", { detail: perStage }));
    const line = statusOf(root);
    if (!line) return;
    if (!element) {
      line.textContent = hintFor(root);
      line.title = "";
      return;
    }
    const named = root.dataset.names ? root : root.querySelector("[data-names]");
    const names = named ? JSON.parse(named.dataset.names) : {};
    const from = originsOf(element).map((origin) => names[origin] || "node " + origin);
    const parts = wordsFor(linked);
    const pin = shown.get(root).pinned ? " (pinned; Escape lets go)" : "";
    line.textContent = line.title = abridged(from, 6).join(", ") + " \u2192 " + abridged(parts, 14).join(" \u00b7 ") + pin;
  }

  const abridged = (words, most) =>
    words.length <= most ? words : [...words.slice(0, most), "and " + (words.length - most) + " more"];

  function wordsFor(linked) {
    const words = new Set();
    const lines = new Map(); // listing -> line numbers, in document order
    for (const other of linked) {
      const figure = other.closest("[data-name]");
      if (other.dataset.label) {
        words.add(other.dataset.label);
      } else if (figure && other.dataset.line) {
        if (!lines.has(figure)) {
          lines.set(figure, []);
          words.add(figure);
        }
        lines.get(figure).push(other.dataset.line);
      }
    }
    return [...words].map((word) => {
      if (typeof word === "string") return word;
      const numbers = lines.get(word);
      const noun = word.dataset.noun;
      if (noun !== "line") return numbers.length + " " + noun + (numbers.length === 1 ? "" : "s");
      const spelled = (numbers.length === 1 ? " line " : " lines ") + abridged(numbers, 4).join(", ");
      return word.dataset.name + spelled;
    });
  }

  function statusOf(root) {
    let line = root.querySelector(".sx-status");
    if (!line && root.querySelector(SELECTOR)) {
      line = document.createElement("p");
      line.className = "sx-status";
      line.setAttribute("role", "status");
      line.setAttribute("aria-live", "polite");
      line.textContent = hintFor(root);
      // Above the panes of an explorer, where it stays in sight; below a single listing.
      const stages = root.classList.contains("sx-explorer") ? root.querySelector(":scope > .sx-stages") : null;
      root.insertBefore(line, stages);
    }
    return line;
  }

  // -- pointer ------------------------------------------------------------------------------------------------------

  let waiting = null;
  const isPinned = (root) => Boolean(shown.get(root)?.pinned);

  document.addEventListener("pointerover", (event) => {
    const element = linkedTarget(event.target);
    const root = element ? rootOf(element) : event.target instanceof Element ? rootOf(event.target) : null;
    cancelAnimationFrame(waiting);
    if (!root || isPinned(root)) return;
    waiting = requestAnimationFrame(() => {
      if (isPinned(root)) return; // a click came first
      if (element) show(element, false);
      else if (shown.has(root)) clear(root);
    });
  });

  document.addEventListener("pointerout", (event) => {
    const root = event.target instanceof Element ? rootOf(event.target) : null;
    if (!root || isPinned(root) || (event.relatedTarget instanceof Node && root.contains(event.relatedTarget))) return;
    cancelAnimationFrame(waiting);
    if (shown.has(root)) clear(root);
  });

  document.addEventListener("click", (event) => {
    const element = linkedTarget(event.target);
    // Selecting text is not a click on a line.
    if (!element || String(window.getSelection() || "").length) return;
    toggle(element);
  });

  function toggle(element) {
    const current = shown.get(rootOf(element));
    if (current && current.pinned && current.element === element) clear(rootOf(element));
    else show(element, true);
  }

  // -- keyboard -----------------------------------------------------------------------------------------------------

  document.addEventListener("focusin", (event) => {
    const element = linkedTarget(event.target);
    if (!element || element !== event.target || !element.matches(":focus-visible")) return;
    if (!element.hasAttribute("role")) element.setAttribute("role", "button");
    if (!isPinned(rootOf(element))) show(element, false);
  });

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.target instanceof Element)) return;
    const root = rootOf(event.target);
    if (!root) return;
    if (event.key === "Escape" && shown.has(root)) {
      clear(root);
      event.preventDefault();
      return;
    }
    const element = event.target.matches(SELECTOR) ? event.target : null;
    if ((event.key === "n" || event.key === "p") && !event.target.matches("input, select, textarea")) {
      step(root.querySelectorAll(".sx-linked"), event.target, event.key === "n" ? 1 : -1);
      event.preventDefault();
    } else if (element && (event.key === "Enter" || event.key === " ")) {
      toggle(element);
      event.preventDefault();
    } else if (element && event.key.startsWith("Arrow")) {
      const forward = event.key === "ArrowDown" || event.key === "ArrowRight";
      step(element.closest("[data-group]")?.querySelectorAll(SELECTOR) || [], element, forward ? 1 : -1);
      event.preventDefault();
    }
  });

  // Move the focus to the next visible element of a list in document order, and the group's tab stop with it.
  function step(candidates, from, direction) {
    const list = [...candidates].filter(isVisible);
    if (!list.length) return;
    let position = list.indexOf(from);
    if (position >= 0) {
      position += direction;
    } else {
      const after = list.findIndex((e) => from.compareDocumentPosition(e) & Node.DOCUMENT_POSITION_FOLLOWING);
      position = direction > 0 ? Math.max(after, 0) : (after < 0 ? list.length : after) - 1;
    }
    const next = list[(position + list.length) % list.length];
    for (const other of next.closest("[data-group]")?.querySelectorAll('[tabindex="0"]') || []) {
      if (other.matches(SELECTOR)) other.setAttribute("tabindex", "-1");
    }
    next.setAttribute("tabindex", "0");
    next.focus({ preventScroll: true });
    next.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  // -- start --------------------------------------------------------------------------------------------------------

  function scan() {
    for (const root of document.querySelectorAll(".sx-root")) statusOf(root);
  }

  window.staxlabLinks = { scan, show, clear };
  scan();
})();
