"use strict";
/* The charts, drawn by uPlot; the values at the cursor stand in their legend. */
(() => {
  const COLORS = ["--line-1", "--line-2", "--line-3", "--line-4", "--line-5", "--line-6"];
  const axisNumber = (value) => {
    if (value === null || value === undefined) return "";
    if (Math.abs(value) >= 1e6) return `${+(value / 1e6).toFixed(2)}M`;
    if (Math.abs(value) >= 1e4) return `${+(value / 1e3).toFixed(1)}k`;
    return `${+value.toPrecision(6)}`;
  };
  const shown = (value) => {
    if (value === null || value === undefined) return "–";
    return Math.abs(value) >= 100 || Number.isInteger(value) ? kv.number(value) : `${+value.toPrecision(4)}`;
  };

  const plots = [];
  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    const chart = kv.data.charts[Number(figure.dataset.chart)];
    const place = figure.querySelector(".plot");
    const axis = (label, more) => ({
      label, labelSize: 22, labelFont: "12px system-ui, sans-serif",
      font: "11px system-ui, sans-serif",
      stroke: () => kv.color("--soft"),
      grid: { stroke: () => kv.color("--rule"), width: 1 },
      ticks: { show: false },
      values: (u, values) => values.map(axisNumber),
      ...more,
    });
    const log = chart.log ? { distr: 3, log: 2 } : {};
    const make = (width) => ({
      width, height: 250,
      cursor: { y: false, points: { size: 7 } },
      legend: { live: true },
      scales: { x: { time: false, ...log }, y: chart.log ? log : { range: (u, low, high) => [0, (high || 1) * 1.06] } },
      axes: [axis(chart.x_label, { size: 30 }), axis(chart.y_label, { size: 58 })],
      series: [
        { label: chart.x_label, value: (u, v) => shown(v) },
        ...chart.lines.map(([label], index) => ({
          label,
          stroke: () => kv.color(COLORS[index % COLORS.length]),
          width: 1.75,
          points: { show: chart.x.length < 20, size: 6 },
          value: (u, v) => shown(v),
        })),
      ],
    });
    const plot = new uPlot(make(place.clientWidth), [chart.x, ...chart.lines.map((l) => l[1])], place);
    plots.push([plot, place]);
    /* The arrow keys move the cursor from value to value. */
    let at = chart.x.length - 1;
    const move = (to) => {
      at = Math.max(0, Math.min(chart.x.length - 1, to));
      plot.setCursor({ left: plot.valToPos(chart.x[at], "x"), top: 10 });
      const told = chart.lines.map(([label, values]) => `${label} ${shown(values[at])}`);
      place.setAttribute("aria-valuetext", `${chart.x_label} ${shown(chart.x[at])}: ${told.join(", ")}`);
      place.setAttribute("aria-valuenow", at);
    };
    place.setAttribute("aria-valuemax", chart.x.length - 1);
    place.addEventListener("keydown", (event) => {
      const far = Math.max(1, Math.round(chart.x.length / 10));
      const to = {
        ArrowLeft: at - 1, ArrowRight: at + 1, PageDown: at - far, PageUp: at + far,
        Home: 0, End: chart.x.length - 1,
      }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      move(to);
    });
    move(at);
  }
  const fit = () => {
    for (const [plot, place] of plots) plot.setSize({ width: place.clientWidth, height: 250 });
  };
  addEventListener("resize", fit);
  kv.recolored(() => { for (const [plot] of plots) plot.redraw(false); });
})();
