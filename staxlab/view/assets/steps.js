// A drawing that shows one state after the other. The figure says how many steps there are (data-steps) and what each
// is (data-words); inside it, data-lit lists the steps at which an element is lit, data-shown those at which it is
// there, data-texts what it says from which step on. Without this script the last state is drawn, and nothing is lost
// but the way to it.
(() => {
  "use strict";
  if (window.staxlabSteps) {
    window.staxlabSteps.scan();
    return;
  }

  const make = (tag, attributes) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    return element;
  };
  const listed = (element, name, step) => element.dataset[name].split(" ").includes(String(step));

  function start(figure) {
    const last = Number(figure.dataset.steps);
    const words = JSON.parse(figure.dataset.words);
    const bar = make("div", { class: "sx-bar sx-steps-bar", role: "group", "aria-label": "Steps" });
    const back = make("button", { class: "sx-step", type: "button", "aria-label": "Previous step", title: "Previous step" });
    const on = make("button", { class: "sx-step", type: "button", "aria-label": "Next step", title: "Next step" });
    const slider = make("input", { type: "range", min: 0, max: last, step: 1, class: "sx-steps-slider", "aria-label": "Step" });
    const said = make("output", { class: "sx-steps-words", "aria-live": "polite" });
    back.textContent = "\u2039";
    on.textContent = "\u203a";
    bar.append(back, slider, on);
    // Motion only for who asked for it: a button, and not even that where the system says that less is wanted.
    const still = window.matchMedia && window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    const play = "play" in figure.dataset && !still ? make("button", { class: "sx-step sx-play", type: "button" }) : null;
    let timer = null;
    function running(now) {
      if (timer) clearInterval(timer);
      timer = now ? setInterval(next, 900) : null;
      play.textContent = now ? "\u2016" : "\u25b6\ufe0e";
      play.setAttribute("aria-label", now ? "Pause" : "Play");
      said.setAttribute("aria-live", now ? "off" : "polite");
    }
    function next() {
      if (Number(slider.value) < last) show(Number(slider.value) + 1);
      else running(false);
    }
    if (play) {
      bar.append(play);
      play.addEventListener("click", () => {
        if (!timer && Number(slider.value) === last) show(0);
        running(!timer);
      });
      running(false);
    }
    bar.append(said);
    figure.prepend(bar);

    function show(step) {
      for (const element of figure.querySelectorAll("[data-lit]")) {
        element.classList.toggle("sx-lit", listed(element, "lit", step));
      }
      for (const element of figure.querySelectorAll("[data-shown]")) {
        element.style.visibility = listed(element, "shown", step) ? "visible" : "hidden";
      }
      for (const element of figure.querySelectorAll("[data-texts]")) {
        const texts = Object.entries(JSON.parse(element.dataset.texts));
        const past = texts.filter(([from]) => Number(from) <= step);
        element.textContent = past.length ? past[past.length - 1][1] : "";
      }
      slider.value = String(step);
      slider.setAttribute("aria-valuetext", words[step]);
      said.textContent = step + " / " + last + ": " + words[step];
      back.disabled = step === 0;
      on.disabled = step === last;
    }
    slider.addEventListener("input", () => show(Number(slider.value)));
    back.addEventListener("click", () => show(Number(slider.value) - 1));
    on.addEventListener("click", () => show(Number(slider.value) + 1));
    figure.classList.add("sx-live");
    show(last);
  }

  function scan() {
    for (const figure of document.querySelectorAll(".sx-steps:not(.sx-live)")) start(figure);
  }

  window.staxlabSteps = { scan };
  scan();
})();
