// Draws the graphs of a page by uPlot (MIT, uplot.LICENSE), each from the table and the legend beside it. Without this
// script the table is what there is.
"use strict";

(() => {
  const drawn = new Map(); // plots by figure
  const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
  const dayStep = 86400;

  const colorsOf = (figure) => {
    const style = getComputedStyle(figure);
    return (name) => style.getPropertyValue("--" + name).trim();
  };

  // Times are those of the reader's zone. A day is one of UTC, as it is counted.
  const timeFormat = (step, span, long) => new Intl.DateTimeFormat(undefined, {
    ...(step >= dayStep ? { timeZone: "UTC" } : {}),
    ...(long || span > 2 * dayStep ? { day: "numeric", month: "short" } : {}),
    ...(step < dayStep && (long || span <= 2 * dayStep) ? { hour: "2-digit", minute: "2-digit", hourCycle: "h23" } : {}),
  });

  // Reads what a figure shows.
  const read = (figure) => {
    const rows = [...figure.querySelector("table").tBodies[0].rows];
    const keys = [...figure.querySelectorAll("[data-series]")];
    const numbers = (selector, ...names) => [...figure.querySelectorAll(selector)].map((item) => ({
      text: item.textContent, ...Object.fromEntries(names.map((name) => [name, Number(item.dataset[name] ?? Infinity)])),
    }));
    return {
      step: Number(figure.dataset.step), levels: "levels" in figure.dataset, money: figure.dataset.unit === "usd",
      times: rows.map((row) => Date.parse(row.querySelector("time").dateTime) / 1000),
      series: keys.map((key, i) => ({
        name: key.firstChild.textContent.trim(), color: key.className,
        values: rows.map((row) => Number(row.cells[i + 1].dataset.value)), texts: rows.map((row) => row.cells[i + 1].textContent),
      })),
      lines: numbers("[data-line]", "line"), bands: numbers("[data-from]", "from", "until"),
      marks: numbers("[data-mark]", "mark"),
    };
  };

  // Returns the values as uPlot draws them: the sum of a stack first, so that the lower ones cover it.
  const stack = ({ series, levels, times }) => {
    const sums = times.map(() => 0);
    const layers = series.map(({ values }) => values.map((v, i) => levels ? v : (sums[i] += v)));
    return [times, ...layers.reverse()];
  };

  const highest = ({ series, levels, times, lines }) => {
    const sum = (i) => series.reduce((total, s) => levels ? Math.max(total, s.values[i]) : total + s.values[i], 0);
    const top = times.reduce((most, _, i) => Math.max(most, sum(i)), 1);
    // A limit far above all bars would press them flat: the legend has it.
    return Math.max(top, ...lines.map(({ line }) => line).filter((line) => levels || line <= top * 5)) * 1.08;
  };

  const draw = (figure) => {
    const plot = figure.querySelector(".plot");
    const data = read(figure);
    const { times, step, levels, money, series } = data;
    if (!times.length || !plot.clientWidth) return;
    const color = colorsOf(figure);
    const first = times[0], last = times.at(-1) + (levels ? 0 : step);
    const format = timeFormat(step, last - first), long = timeFormat(step, last - first, true);
    const amount = (v) => money ? compact.format(v / 1e6) + " USD" : compact.format(v);
    const bars = uPlot.paths.bars({ size: [0.72, 48], align: 1, radius: 0.1 });
    const font = "12px " + getComputedStyle(figure).fontFamily;
    const axis = { stroke: color("dim"), font, ticks: { show: false }, grid: { stroke: color("line"), width: 1 } };

    const clip = (u, paint) => {
      u.ctx.save();
      u.ctx.beginPath();
      u.ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
      u.ctx.clip();
      paint(u.ctx, u.bbox);
      u.ctx.restore();
    };
    const x = (u, at) => u.valToPos(Math.min(Math.max(at, first), last), "x", true);
    const below = (u) => clip(u, (ctx, { top, height }) => {
      ctx.fillStyle = color("band");
      data.bands.filter(({ from, until }) => from < last && until > first)
        .forEach(({ from, until }) => ctx.fillRect(x(u, from), top, x(u, until) - x(u, from), height));
    });
    const above = (u) => clip(u, (ctx, { left, top, width, height }) => {
      const line = (name, dash, ax, ay, bx, by) => {
        ctx.strokeStyle = color(name);
        ctx.lineWidth = 1.5 * devicePixelRatio;
        ctx.setLineDash(dash.map((d) => d * devicePixelRatio));
        ctx.beginPath();
        ctx.moveTo(ax, ay);
        ctx.lineTo(bx, by);
        ctx.stroke();
      };
      data.lines.forEach(({ line: at }) => {
        const y = u.valToPos(at, "y", true);
        line("bad", [6, 4], left, y, left + width, y);
      });
      data.marks.filter(({ mark }) => mark >= first && mark <= last)
        .forEach(({ mark }) => line("dim", [2, 3], x(u, mark), top, x(u, mark), top + height));
    });

    const tip = Object.assign(document.createElement("div"), { className: "tip", hidden: true });
    const line = (text, value, name) => {
      const row = document.createElement("div");
      const label = Object.assign(document.createElement("span"), { textContent: text, className: name ?? "" });
      row.append(label, Object.assign(document.createElement("b"), { textContent: value }));
      return row;
    };
    const point = (u) => {
      const { idx, left } = u.cursor;
      tip.hidden = idx == null || left < 0;
      if (tip.hidden) return;
      const from = times[idx];
      tip.replaceChildren(line(long.format(from * 1000), ""));
      [...series].reverse().forEach((s) => tip.append(line(s.name, s.texts[idx], s.color)));
      data.bands.filter((b) => b.from < from + step && b.until > from).forEach((b) => tip.append(line(b.text, "", "band")));
      data.marks.filter((m) => m.mark >= from && m.mark < from + step).slice(0, 3).forEach((m) => tip.append(line(m.text, "")));
      const at = u.valToPos(from, "x"), beside = at > u.over.clientWidth / 2 ? at - tip.offsetWidth - 8 : at + 16;
      tip.style.translate = `${Math.max(0, beside)}px 0`;
    };

    const options = {
      width: plot.clientWidth, height: plot.clientWidth < 480 ? 190 : 240, padding: [8, 18, 0, 0],
      legend: { show: false },
      cursor: {
        y: false, points: { show: false }, drag: { x: false, y: false },
        dataIdx: (u, _, closest, at) => levels ? closest : Math.max(0, times[closest] > at ? closest - 1 : closest),
      },
      scales: { x: { range: () => [first, Math.max(last, first + 1)] }, y: { range: () => [0, highest(data)] } },
      ...(step >= dayStep ? { tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC") } : {}),
      axes: [
        { ...axis, grid: { show: false }, space: 64, size: 28, values: (_, at) => {
          const texts = at.map((t) => format.format(t * 1000));
          return texts.map((text, i) => text === texts[i - 1] ? "" : text);
        } },
        { ...axis, size: money ? 76 : 52, space: 40, values: (_, at) => at.map((v) => v > 0 && v < 1 ? "" : amount(v)) },
      ],
      series: [{}, ...[...series].reverse().map(({ color: name }) => levels
        ? { stroke: color(name), width: 2, fill: color(name) + "22", points: { show: false } }
        : { stroke: color(name), width: 0, fill: color(name), paths: bars, points: { show: false } })],
      hooks: { drawClear: [below], draw: [above], setCursor: [point], ready: [(u) => u.over.append(tip)] },
    };
    const top = highest(data);
    figure.querySelectorAll("[data-line]").forEach((key) => key.classList.toggle("off", Number(key.dataset.line) > top));
    drawn.get(figure)?.destroy();
    drawn.set(figure, new uPlot(options, stack(data), plot));
  };

  const sizes = new ResizeObserver((list) => list.forEach(({ target }) => {
    const plot = drawn.get(target.parentElement);
    if (plot && target.clientWidth && plot.width !== target.clientWidth) draw(target.parentElement);
  }));

  // Draws the graphs in an element whose content is new, and forgets those that are gone.
  window.drawCharts = (root) => {
    for (const [figure, plot] of drawn) {
      if (figure.isConnected) continue;
      plot.destroy();
      drawn.delete(figure);
    }
    root.querySelectorAll("figure.chart").forEach((figure) => {
      draw(figure);
      sizes.observe(figure.querySelector(".plot"));
    });
  };
  // Another scheme has other colors, and paper has another width too.
  for (const query of ["(prefers-color-scheme: dark)", "print"]) {
    matchMedia(query).addEventListener("change", () => drawn.forEach((_, figure) => draw(figure)));
  }
  window.drawCharts(document);
})();
