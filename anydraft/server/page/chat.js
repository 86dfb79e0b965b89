"use strict";

(() => {
  const EXAMPLES = [
    "Write a Python function that merges two sorted lists.",
    "Explain in two sentences why the sky is blue.",
    "List the planets with one remarkable fact about each.",
  ];
  const UNREACHABLE = "The server does not answer. It may have been stopped; start it again and try again.";
  const history = [];
  let model = null;
  let running = null;
  let update = null;
  let session = 0;

  class Trouble extends Error {}

  function headers() {
    const key = byId("key").value.trim();
    return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  }

  /** A response that is good; else a Trouble in the server's words, or ours where there are none. */
  async function ask(path, options) {
    let response;
    try {
      response = await fetch(path, { ...options, headers: headers() });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Trouble(UNREACHABLE);
    }
    if (response.ok) return response;
    if (response.status === 401) {
      byId("key-field").hidden = false;
      openSide(true);
      byId("key").focus();
    }
    const body = await response.json().catch(() => null);
    throw new Trouble(body?.error?.message || `The server answered with status ${response.status}.`);
  }

  /** The events of a stream until its end mark; a stream that breaks off is trouble. */
  async function* events(response) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      let part;
      try {
        part = await reader.read();
      } catch (error) {
        if (error.name === "AbortError") throw error;
        throw new Trouble(`The answer broke off. ${UNREACHABLE}`);
      }
      if (part.done) throw new Trouble(`The answer broke off. ${UNREACHABLE}`);
      const lines = (rest + part.value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data: ")) continue;
        const data = line.slice(6);
        if (data === "[DONE]") return;
        const event = JSON.parse(data);
        if (event.error) throw new Trouble(event.error.message);
        yield event;
      }
    }
  }

  async function load() {
    try {
      const response = await ask("/v1/models", {});
      model = (await response.json()).data[0];
    } catch (error) {
      showTrouble(error.message, load);
      return;
    }
    hideTrouble();
    showPair(byId("pair"), model.id, model.speculative.draft);
    byId("method").replaceChildren();
    const own = model.speculative.method.split("(")[0];
    for (const method of model.speculative.methods) {
      const label = method === "none" ? "none (the target alone)" : method;
      const option = element("option", "", method === own ? `${label} – the server's` : label);
      option.value = method;
      option.selected = method === own;
      byId("method").append(option);
    }
    byId("system-field").hidden = !model.speculative.chat;
  }

  function addTurn(kind, title, text) {
    const turn = element("article", `turn ${kind}`);
    const said = element("div", "said", text);
    const line = element("p", "line");
    turn.append(element("h3", "", title), said, line);
    byId("turns").append(turn);
    byId("welcome").hidden = true;
    return { turn, said, line };
  }

  function body(text) {
    const count = Number(byId("count").value);
    const shared = {
      model: model.id,
      temperature: Number(byId("temperature").value),
      max_tokens: Number(byId("max-tokens").value) || undefined,
      stream: true,
      stream_options: { include_usage: true },
      speculative: {
        method: byId("method").value,
        num_speculative_tokens: count >= 1 ? count : undefined,
        return_tokens: true,
      },
    };
    if (!model.speculative.chat) return ["/v1/completions", { ...shared, prompt: text }];
    const system = byId("system").value.trim();
    const before = system ? [{ role: "system", content: system }] : [];
    return ["/v1/chat/completions", { ...shared, messages: [...before, ...history, { role: "user", content: text }] }];
  }

  /** Numbers of an answer while it comes; the rate counts from the first token on. */
  class Meter {
    constructor() {
      this.counts = {};
      this.tokens = 0;
      this.rate = undefined;
    }

    add(told) {
      const now = performance.now();
      this.first ??= { at: now, tokens: told.num_tokens };
      if (now > this.first.at) this.rate = (1000 * (told.num_tokens - this.first.tokens)) / (now - this.first.at);
      this.tokens = told.num_tokens;
      this.told = told;
      countTokens(this.counts, told.tokens);
    }

    show() {
      byId("rate").textContent = number(this.rate, 1);
      byId("length").textContent = number(this.told?.acceptance_length);
      byId("speedup").textContent = times(this.told?.predicted_speedup);
      update(this.counts);
    }

    line(container, method, note) {
      const parts = [
        [number(this.rate, 1), " tok/s"],
        [number(this.told?.acceptance_length), " tokens a step"],
        [times(this.told?.predicted_speedup), " the target alone, predicted"],
        [String(this.tokens), ` tokens in ${this.told?.num_steps ?? 0} steps`],
        ["", method],
        ...(note ? [["", note]] : []),
      ];
      container.replaceChildren();
      for (const [value, name] of parts) {
        const part = element("span");
        if (value) part.append(element("b", "", value));
        part.append(name);
        container.append(part);
      }
    }
  }

  const NOTES = { length: "ended at its limit of tokens", abort: "ended by the server" };

  async function send(text) {
    const question = addTurn("user", "You", text);
    const answer = addTurn("answer", model.id, "");
    const main = byId("main");
    const meter = new Meter();
    let method = byId("method").value;
    let whole = "";
    let reason = null;
    const mine = session;
    running = new AbortController();
    setRunning(true);
    main.scrollTop = main.scrollHeight;
    const finish = (note) => {
      if (mine !== session) return;
      history.push({ role: "user", content: text }, { role: "assistant", content: whole });
      meter.line(answer.line, method, note);
      byId("status").textContent = `Answer finished. ${answer.line.textContent}`;
    };
    try {
      const [path, fields] = body(text);
      const response = await ask(path, { method: "POST", body: JSON.stringify(fields), signal: running.signal });
      for await (const event of events(response)) {
        method = event.metrics?.speculative_decoding?.method || method;
        const choice = event.choices[0];
        if (!choice) continue;
        reason = choice.finish_reason || reason;
        whole += choice.delta?.content || choice.text || "";
        if (!choice.speculative) continue;
        const follow = main.scrollHeight - main.scrollTop - main.clientHeight < 80;
        addTokens(answer.said, choice.speculative.tokens);
        meter.add(choice.speculative);
        meter.show();
        meter.line(answer.line, method);
        if (follow) main.scrollTop = main.scrollHeight;
      }
      finish(NOTES[reason]);
    } catch (error) {
      if (error.name === "AbortError") {
        finish("stopped");
      } else {
        // Nothing of a failed exchange stays in the history; the text goes back to where it was written.
        if (!whole) {
          question.turn.remove();
          answer.turn.remove();
        } else {
          meter.line(answer.line, method, "broken off, not part of the conversation");
        }
        if (!byId("prompt").value) byId("prompt").value = text;
        showTrouble(error instanceof Trouble ? error.message : `The page failed: ${error.message}`, submit);
      }
    } finally {
      running = null;
      setRunning(false);
    }
  }

  function submit() {
    const text = byId("prompt").value;
    if (running || !text.trim()) return;
    hideTrouble();
    if (!model) {
      load().then(() => model && submit());
      return;
    }
    byId("prompt").value = "";
    send(text);
  }

  function setRunning(on) {
    byId("send").hidden = on;
    byId("stop").hidden = !on;
    (on ? byId("stop") : byId("prompt")).focus({ preventScroll: true });
    if (on) byId("status").textContent = "The answer begins.";
  }

  let retry = null;

  function showTrouble(message, again) {
    byId("trouble-text").textContent = message;
    byId("trouble").hidden = false;
    byId("main").scrollTop = byId("main").scrollHeight;
    retry = again;
  }

  function hideTrouble() {
    byId("trouble").hidden = true;
  }

  function openSide(open) {
    byId("side").classList.toggle("open", open);
    byId("open-side").setAttribute("aria-expanded", String(open));
  }

  byId("form").addEventListener("submit", (event) => {
    event.preventDefault();
    submit();
  });
  byId("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      submit();
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    if (running) running.abort();
    openSide(false);
  });
  byId("stop").addEventListener("click", () => running?.abort());
  byId("retry").addEventListener("click", () => {
    hideTrouble();
    retry();
  });
  byId("new").addEventListener("click", () => {
    running?.abort();
    session += 1;
    history.length = 0;
    byId("turns").replaceChildren();
    byId("welcome").hidden = false;
    hideTrouble();
    byId("prompt").focus();
  });
  byId("open-side").addEventListener("click", () => {
    openSide(true);
    byId("close-side").focus();
  });
  byId("close-side").addEventListener("click", () => {
    openSide(false);
    byId("open-side").focus();
  });
  byId("colours").addEventListener("change", (event) => byId("app").classList.toggle("plain", !event.target.checked));
  byId("temperature").addEventListener("input", (event) => (byId("temperature-shown").textContent = event.target.value));
  byId("key").addEventListener("change", load);
  for (const text of EXAMPLES) {
    const button = element("button", "button", text);
    button.type = "button";
    button.addEventListener("click", () => {
      byId("prompt").value = text;
      submit();
    });
    byId("examples").append(button);
  }
  update = makeLegend(byId("legend"), byId("app"), byId("shares"));
  load();
  byId("prompt").focus();
})();
