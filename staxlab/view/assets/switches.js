// A record in which every combination of choices was worked out beforehand. The figure lists the names of the values and
// their two choices (data-names, data-choices), the combinations in order (data-combinations, one character of 0 and 1
// for each value) and what to say of each (data-words). Cells with data-switch get buttons; elements with data-states
// are there, or marked if they are rows, for the combinations listed. Without this script everything is there at once.
(() => {
  "use strict";
  if (window.staxlabSwitches) {
    window.staxlabSwitches.scan();
    return;
  }

  function start(figure) {
    const choices = JSON.parse(figure.dataset.choices);
    const combinations = JSON.parse(figure.dataset.combinations);
    const words = JSON.parse(figure.dataset.words);
    const said = figure.querySelector(".sx-switches-words");
    const buttons = [];
    let current = combinations[0];

    // Where not every combination is there, a choice takes back the others.
    function wanted(place, choice) {
      const next = current.slice(0, place) + choice + current.slice(place + 1);
      if (combinations.includes(next)) return next;
      const first = combinations[0];
      return first.slice(0, place) + choice + first.slice(place + 1);
    }

    function show(combination) {
      current = combination;
      const state = combinations.indexOf(combination);
      for (const [button, place, choice] of buttons) {
        button.setAttribute("aria-pressed", String(combination[place] === choice));
      }
      for (const element of figure.querySelectorAll("[data-states]")) {
        const here = element.dataset.states.split(" ").includes(String(state));
        if (element.tagName === "TR") {
          element.classList.toggle("sx-chosen", here);
          if (here) element.setAttribute("aria-current", "true");
          else element.removeAttribute("aria-current");
        } else {
          element.hidden = !here;
          if (figure.dataset.open) element.open = here;
        }
      }
      if (said) said.textContent = words[state];
    }

    for (const cell of figure.querySelectorAll("[data-switch]")) {
      const place = Number(cell.dataset.switch);
      const group = document.createElement("span");
      group.className = "sx-switch-group";
      group.setAttribute("role", "group");
      group.setAttribute("aria-label", cell.dataset.value);
      choices.forEach((choice, number) => {
        const button = document.createElement("button");
        button.type = "button";
        button.className = "sx-switch";
        button.textContent = choice;
        button.addEventListener("click", () => show(wanted(place, String(number))));
        buttons.push([button, place, String(number)]);
        group.append(button);
      });
      cell.replaceChildren(group);
    }
    for (const row of figure.querySelectorAll("tr[data-states]")) {
      row.addEventListener("click", () => show(combinations[Number(row.dataset.states)]));
    }
    figure.classList.add("sx-live");
    show(current);
  }

  function scan() {
    for (const figure of document.querySelectorAll(".sx-switches:not(.sx-live)")) start(figure);
  }

  window.staxlabSwitches = { scan };
  scan();
})();
