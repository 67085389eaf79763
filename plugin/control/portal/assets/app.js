// Replaces the live parts of a page while it is visible. Without this script a page shows what it had when it loaded.
"use strict";

(() => {
  const parts = [...document.querySelectorAll("[data-live]")].map((element) => ({ element, source: null }));
  const retryAfter = 30000; // milliseconds

  const open = (part) => {
    if (part.source || document.hidden) return;
    const source = new EventSource(part.element.dataset.live);
    part.source = source;
    source.addEventListener("rows", (event) => {
      part.element.classList.remove("stale");
      replace(part.element, event.data);
    });
    source.addEventListener("stale", () => part.element.classList.add("stale"));
    source.addEventListener("error", () => {
      part.element.classList.add("stale");
      if (source.readyState !== EventSource.CLOSED) return; // the browser tries again
      part.source = null;
      setTimeout(() => open(part), retryAfter);
    });
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

  const close = (part) => {
    part.source?.close();
    part.source = null;
  };

  document.addEventListener("visibilitychange", () => parts.forEach(document.hidden ? close : open));
  addEventListener("pagehide", () => parts.forEach(close));
  addEventListener("pageshow", () => parts.forEach(open));
  parts.forEach(open);

  // A form is sent once, also after a second click.
  document.addEventListener("submit", (event) => {
    if (event.target.dataset.sent) event.preventDefault();
    event.target.dataset.sent = "yes";
    setTimeout(() => delete event.target.dataset.sent, 5000);
  });
})();
