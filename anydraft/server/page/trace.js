"use strict";

(() => {
  const run = JSON.parse(byId("run").textContent);
  const metrics = run.metrics.speculative_decoding;
  showPair(byId("pair"), run.target, run.draft);
  byId("pair").append(`, method ${run.method}`);
  byId("prompt").textContent = run.prompt;
  const counts = {};
  for (const step of run.steps) {
    addTokens(byId("answer"), step);
    countTokens(counts, step);
    const item = element("li");
    const tokens = element("div");
    addTokens(tokens, step);
    item.append(tokens);
    byId("steps").append(item);
  }
  makeLegend(byId("legend"), byId("app"), byId("shares"))(counts);
  const figures = [
    ["tokens a second", number(run.tokens_per_second, 1)],
    ["acceptance length", number(metrics.acceptance_length)],
    ["acceptance rate", `${number(100 * metrics.acceptance_rate, 0)} %`],
    ["speed-up, predicted", times(metrics.predicted_speedup)],
    ["tokens", String(run.usage.completion_tokens)],
    ["target calls", String(metrics.num_steps)],
  ];
  for (const [name, value] of figures) {
    const box = element("div");
    box.append(element("dt", "", name), element("dd", "", value));
    byId("numbers").append(box);
  }
})();
