// Talks to the server: REST, and a stream of events that comes back by itself.

const KEY = "cutwater-token";
const ANSWER_MS = 30_000;
let held = "";

export const token = {
  get: () => held || sessionStorage.getItem(KEY) || "",
  set(value) {
    held = value;
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  },
};

export class Failed extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const headers = () => (token.get() ? { authorization: `Bearer ${token.get()}` } : {});

async function answer(response) {
  let found = {};
  try {
    found = await response.json();
  } catch {
    found = { error: `the server answered with status ${response.status}` };
  }
  if (!response.ok) throw new Failed(response.status, found.error ?? "the server refused");
  return found;
}

export async function get(path, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== ""));
  const text = query.toString();
  return answer(await fetch(`/api/v1/${path}${text ? `?${text}` : ""}`, { headers: headers(), signal: AbortSignal.timeout(ANSWER_MS) }));
}

export async function ask(wish) {
  const options = { method: "POST", headers: { ...headers(), "content-type": "application/json" }, body: JSON.stringify(wish), signal: AbortSignal.timeout(ANSWER_MS) };
  return answer(await fetch("/api/v1/requests", options));
}

/** Calls `on(event, data)` for every event, and `state("live" | "lost" | "denied")`. EventSource cannot send a token. */
export async function follow(on, state) {
  let pause = 500;
  for (;;) {
    const ended = new AbortController();
    let watchdog = setTimeout(() => ended.abort(), 15_000);
    try {
      const response = await fetch("/api/v1/events", { headers: headers(), signal: ended.signal });
      if (response.status === 401) {
        state("denied");
        clearTimeout(watchdog);
        return;
      }
      if (!response.ok) throw new Error("no stream");
      state("live");
      pause = 500;
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { done, value } = await reader.read();
        if (done) break;
        clearTimeout(watchdog);
        watchdog = setTimeout(() => ended.abort(), 15_000);
        const parts = (rest + value).split("\n\n");
        rest = parts.pop();
        for (const part of parts) {
          const event = /^event: (.*)$/m.exec(part)?.[1];
          const data = /^data: (.*)$/m.exec(part)?.[1];
          if (event) on(event, JSON.parse(data ?? "{}"));
        }
      }
    } catch {
      // It is tried again below.
    }
    clearTimeout(watchdog);
    state("lost");
    await new Promise((resume) => setTimeout(resume, pause));
    pause = Math.min(pause * 2, 5_000);
  }
}
