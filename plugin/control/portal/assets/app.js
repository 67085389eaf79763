// Replaces the live parts of a page while it is visible. Without this script a page shows what it had when it loaded.
"use strict";

(() => {
  const parts = [...document.querySelectorAll("[data-live]")].map((element) => ({ element, reads: null, etag: "" }));
  const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

  // Fetches a part again and again, until the page is hidden or the session has ended.
  const follow = async (part) => {
    if (part.reads || document.hidden) return;
    const { signal } = part.reads = new AbortController();
    const { live, every } = part.element.dataset;
    while (!signal.aborted) {
      const status = await read(part, live || location.href, signal).catch(() => 0);
      if (signal.aborted) return;
      part.element.classList.toggle("stale", status !== 200 && status !== 304);
      if (status === 401) return;
      await pause(every ?? 2);
    }
  };

  // Replaces a part that has changed, and returns the status of the answer.
  const read = async (part, url, signal) => {
    const answer = await fetch(url, { signal, headers: { "X-Live": "1", "If-None-Match": part.etag } });
    if (answer.ok) {
      const html = await answer.text();
      part.etag = answer.headers.get("ETag");
      replace(part.element, html);
    }
    return answer.status;
  };

  // Replaces the content of a part. What has the focus keeps it, also the link of the next page with another address,
  // tables stay where they are scrolled, and details open.
  const replace = (element, html) => {
    const tagOf = (node) => node.rel === "next" ? "next" : node.cloneNode(false).outerHTML;
    const tables = () => [...element.querySelectorAll(".scroll")];
    const focused = document.activeElement !== element && element.contains(document.activeElement)
      ? tagOf(document.activeElement) : "";
    const details = () => [...element.querySelectorAll("details")];
    const scrolled = tables().map((table) => table.scrollLeft), opened = details().map(({ open }) => open);
    element.innerHTML = html;
    details().forEach((part, i) => { part.open = opened[i] ?? part.open; });
    window.drawCharts?.(element);
    relate(element);
    if (focused) [...element.querySelectorAll("*")].find((node) => tagOf(node) === focused)?.focus({ preventScroll: true });
    tables().forEach((table, i) => { table.scrollLeft = scrolled[i] ?? 0; });
  };

  // Times name the instant in the reader's zone when pointed at; those that are relative follow the clock.
  const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const relate = (root) => root.querySelectorAll("time[datetime]").forEach((time) => {
    const at = Date.parse(time.dateTime), away = (at - Date.now()) / 1000, far = Math.abs(away);
    const [unit, size] = units.find(([, seconds]) => far >= seconds) ?? units.at(-1);
    time.dataset.named ??= time.title; // in UTC, or in the time zone of a limit
    time.title = exact.format(at) + (time.dataset.named && ` (${time.dataset.named})`);
    if ("relative" in time.dataset) {
      time.textContent = far < 1 ? "now" : `${away > 0 ? "in " : ""}${Math.floor(far / size)} ${unit}${away < 0 ? " ago" : ""}`;
    }
  });
  relate(document);
  setInterval(() => document.hidden || relate(document), 10000);

  document.querySelectorAll(":is(nav, .tabs) [aria-current]").forEach((link) => link.scrollIntoView({ block: "nearest", inline: "center" }));

  const leave = (part) => {
    part.reads?.abort();
    part.reads = null;
  };

  document.addEventListener("visibilitychange", () => parts.forEach(document.hidden ? leave : follow));
  addEventListener("pagehide", () => parts.forEach(leave));
  addEventListener("pageshow", () => parts.forEach(follow));
  parts.forEach(follow);

  // Buttons copy the text of a field.
  document.querySelectorAll("[data-copy]").forEach((button) => {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const field = document.getElementById(button.dataset.copy);
      field.select();
      try { await navigator.clipboard.writeText(field.value); } catch { document.execCommand("copy"); }
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 3000);
    });
  });

  // A form is sent once, also after a second click.
  document.addEventListener("submit", (event) => {
    if (event.target.dataset.sent) event.preventDefault();
    event.target.dataset.sent = "yes";
    setTimeout(() => delete event.target.dataset.sent, 5000);
  });
})();
