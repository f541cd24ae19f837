(() => {
  "use strict";
  const all = (selector) => Array.from(document.querySelectorAll(selector));
  // What is chosen of each kind; nothing chosen is all.
  const chosen = { op: new Set(), size: new Set(), subject: new Set(), verdict: new Set() };
  const fits = (kind, value) => chosen[kind].size === 0 || chosen[kind].has(value);
  const hide = (element, hidden) => element.classList.toggle("off", hidden);

  function apply() {
    for (const element of all("[data-subject]")) {
      const { subject, verdict } = element.dataset;
      const told = verdict === undefined || fits("verdict", verdict);
      hide(element, !(fits("subject", subject) && told));
    }
    for (const element of all("[data-op], [data-size]")) {
      const { op, size, subjects } = element.dataset;
      const subject = subjects === undefined || subjects.split(" ").some((it) => fits("subject", it));
      // Where rows have verdicts, a card without any row goes with them.
      const empty = element.matches(".pairs") && !element.querySelector("tbody tr:not(.off)");
      hide(element, !((op === undefined || fits("op", op)) && fits("size", size) && subject) || empty);
    }
    const shown = document.getElementById("shown");
    if (shown) shown.textContent = all("section.cell:not(.off)").length;
  }

  for (const kind of Object.keys(chosen)) {
    const buttons = all("#filter-" + kind + " button");
    const press = (value) => {
      const set = chosen[kind];
      if (value === "") set.clear();
      else if (!set.delete(value)) set.add(value);
      if (set.size === buttons.length - 1) set.clear();
      for (const button of buttons) {
        const own = button.dataset.value;
        button.setAttribute("aria-pressed", own === "" ? set.size === 0 : set.has(own));
      }
      apply();
    };
    for (const button of buttons) button.addEventListener("click", () => press(button.dataset.value));
  }

  function select(element) {
    const range = document.createRange();
    range.selectNodeContents(element);
    const selection = window.getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
  }

  for (const button of all("button.copy")) {
    const text = button.parentElement.querySelector("code");
    button.addEventListener("click", () => {
      const done = () => {
        button.textContent = "Copied";
        setTimeout(() => { button.textContent = "Copy"; }, 2000);
      };
      // Where the clipboard is not ours, the text is at least selected.
      const byHand = () => { select(text); if (document.execCommand("copy")) done(); };
      if (navigator.clipboard) navigator.clipboard.writeText(text.textContent).then(done, byHand);
      else byHand();
    });
  }

  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = all("details:not([open])");
    for (const details of opened) details.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const details of opened) details.open = false;
  });
})();
