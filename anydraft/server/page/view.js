"use strict";

// What the chat and the view of a finished run share: tokens by source. Text only ever enters the page as text.

const SOURCES = {
  accepted: ["accepted", "drafted, and right"],
  lookup: ["copied", "copied from above, and right"],
  corrected: ["corrected", "in place of a wrong draft"],
  bonus: ["bonus", "one more after a right draft"],
  target: ["target", "nothing was drafted"],
};

function element(tag, classes, text) {
  const made = document.createElement(tag);
  if (classes) made.className = classes;
  if (text !== undefined) made.textContent = text;
  return made;
}

function byId(id) {
  return document.getElementById(id);
}

function known(source) {
  return Object.hasOwn(SOURCES, source) ? source : "target";
}

/** Appends the tokens of one step to a container; the first of them begins the step. */
function addTokens(container, tokens) {
  tokens.forEach((token, i) => {
    const source = known(token.source);
    const span = element("span", `token ${source}${i === 0 ? " begins" : ""}`, token.text);
    span.title = `${SOURCES[source][0]}: ${SOURCES[source][1]}`;
    container.append(span);
  });
}

function countTokens(counts, tokens) {
  for (const token of tokens) counts[known(token.source)] = (counts[known(token.source)] || 0) + 1;
  return counts;
}

/** A legend whose entries show, pressed, only their own tokens below ``root``; returns what updates its shares. */
function makeLegend(list, root, bar) {
  const shares = {};
  for (const [source, [name, meaning]] of Object.entries(SOURCES)) {
    const button = element("button");
    button.type = "button";
    button.setAttribute("aria-pressed", "false");
    button.append(element("span", source, name), element("small", "", meaning), (shares[source] = element("em", "", "")));
    button.addEventListener("click", () => {
      const on = root.dataset.only !== source;
      if (on) root.dataset.only = source;
      else delete root.dataset.only;
      for (const other of list.querySelectorAll("button")) other.setAttribute("aria-pressed", String(on && other === button));
    });
    const item = element("li");
    item.append(button);
    list.append(item);
  }
  return (counts) => {
    const total = Object.values(counts).reduce((a, b) => a + b, 0);
    bar.replaceChildren();
    for (const source of Object.keys(SOURCES)) {
      const share = total ? (counts[source] || 0) / total : 0;
      shares[source].textContent = total ? `${Math.round(100 * share)} %` : "";
      const part = element("i", source);
      part.style.flexBasis = `${100 * share}%`;
      bar.append(part);
    }
  };
}

function showPair(container, target, draft) {
  container.replaceChildren(element("b", "", target));
  if (draft) container.append(" drafted by ", element("b", "", draft));
}

function number(value, digits = 2) {
  return typeof value === "number" && Number.isFinite(value) ? value.toFixed(digits) : "–";
}

function times(value) {
  return number(value) === "–" ? "–" : `${number(value)}×`;
}
