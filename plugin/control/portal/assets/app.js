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

  // Replaces the content of a part. What has the focus keeps it, also the link of the next page with another address, and
  // tables stay where they are scrolled.
  const replace = (element, html) => {
    const tagOf = (node) => node.rel === "next" ? "next" : node.cloneNode(false).outerHTML;
    const tables = () => [...element.querySelectorAll(".scroll")];
    const focused = document.activeElement !== element && element.contains(document.activeElement)
      ? tagOf(document.activeElement) : "";
    const scrolled = tables().map((table) => table.scrollLeft);
    element.innerHTML = html;
    if (focused) [...element.querySelectorAll("*")].find((node) => tagOf(node) === focused)?.focus({ preventScroll: true });
    tables().forEach((table, i) => { table.scrollLeft = scrolled[i] ?? 0; });
  };

  const leave = (part) => {
    part.reads?.abort();
    part.reads = null;
  };

  document.addEventListener("visibilitychange", () => parts.forEach(document.hidden ? leave : follow));
  addEventListener("pagehide", () => parts.forEach(leave));
  addEventListener("pageshow", () => parts.forEach(follow));
  parts.forEach(follow);

  // A form is sent once, also after a second click.
  document.addEventListener("submit", (event) => {
    if (event.target.dataset.sent) event.preventDefault();
    event.target.dataset.sent = "yes";
    setTimeout(() => delete event.target.dataset.sent, 5000);
  });
})();
