"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const palette = ["#0d9488", "#2563eb", "#d97706", "#9333ea", "#dc2626", "#65a30d",
                   "#0891b2", "#db2777", "#a16207", "#4f46e5", "#059669", "#64748b"];
  const charts = [];
  const narrow = matchMedia("(max-width: 760px)");
  let sameScale = true;

  const color = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const megabytes = (bytes) => {
    const mb = bytes / 1e6;
    if (mb === 0) return "0";
    return (mb >= 100 ? mb.toFixed(0) : mb >= 1 ? mb.toFixed(1) : mb.toPrecision(2)) + " MB";
  };
  const short = (value) => {
    if (value === 0) return "0";
    const size = Math.abs(value);
    return size >= 1e-3 && size < 1e5 ? String(+value.toPrecision(3)) : value.toExponential(1);
  };
  const tones = () => [color("--plain"), color("--room"), ...palette.slice(1)];

  const frame = (extra) => {
    const text = color("--text"), muted = color("--muted"), line = color("--line");
    const axis = (given) => ({
      type: "value", nameLocation: "middle", nameTextStyle: { color: muted },
      axisLabel: { color: muted, hideOverlap: true }, axisLine: { lineStyle: { color: line } },
      axisTick: { show: false }, splitLine: { lineStyle: { color: line, opacity: 0.7 } }, ...given,
    });
    const { xAxis, yAxis, legend, grid, tooltip, ...rest } = extra;
    return {
      animation: false,
      backgroundColor: "transparent",
      textStyle: { color: text, fontFamily: "system-ui, sans-serif" },
      grid: { left: 12, right: 18, top: 16, bottom: 36, outerBoundsMode: "same", outerBoundsContain: "all", ...grid },
      legend: { type: "scroll", bottom: 0, icon: "roundRect", itemWidth: 12, itemHeight: 10,
                textStyle: { color: text }, pageTextStyle: { color: muted },
                pageIconColor: text, pageIconInactiveColor: line, ...legend },
      tooltip: { trigger: "axis", confine: true, backgroundColor: color("--surface"),
                 borderColor: line, textStyle: { color: text, fontSize: 12 }, ...tooltip },
      xAxis: axis({ nameGap: 26, ...xAxis }),
      yAxis: axis({ nameGap: 44, ...yAxis }),
      ...rest,
    };
  };

  const drawStack = (panel) => frame({
    grid: { top: 30 },
    tooltip: { valueFormatter: megabytes },
    xAxis: { name: "ms since the step began", min: 0, max: panel.end_ms, splitNumber: narrow.matches ? 3 : 5,
             axisLabel: { color: color("--muted"), showMaxLabel: false } },
    yAxis: { name: "saved for backward", min: 0,
             max: sameScale ? data.memory.most_bytes : panel.peak_bytes * 1.05,
             nameGap: 58, splitNumber: narrow.matches ? 3 : 5, axisLabel: { color: color("--muted"), formatter: megabytes, showMaxLabel: false } },
    series: panel.names.map((name, number) => ({
      name, type: "line", stack: "all", step: "end", symbol: "none",
      color: palette[panel.tones[number] % palette.length], lineStyle: { width: 0.5 }, areaStyle: { opacity: 0.85 }, emphasis: { disabled: true },
      data: panel.at_ms.map((at, i) => [at, panel.bytes[number][i]]),
      ...(number === 0 ? { markLine: {
        silent: true, symbol: "none", lineStyle: { color: color("--muted"), type: "dashed" },
        label: { formatter: "backward", color: color("--muted"), position: "end", rotate: 0 },
        data: [{ xAxis: panel.forward_ms }],
      } } : {}),
    })),
  });

  const drawCurves = (figure) => frame({
    color: tones(),
    tooltip: { valueFormatter: (value) => (value == null ? "–" : short(value)) },
    xAxis: { name: "step", minInterval: 1 },
    yAxis: { name: figure.name, scale: true, axisLabel: { color: color("--muted"), formatter: short } },
    series: [
      // The first is drawn broad, so that it is seen where the second lies on it.
      ...figure.series.map((curve, number) => ({
        name: curve.label, type: "line", symbol: "circle", symbolSize: number ? 5 : 9,
        showSymbol: curve.points.length < 30, lineStyle: { width: number ? 2 : 5, opacity: number ? 1 : 0.65 },
        itemStyle: { opacity: number ? 1 : 0.65 }, data: curve.points,
      })),
      ...figure.baselines.map((line) => ({
        name: line.label, type: "line", symbol: "none", data: line.points,
        lineStyle: { width: 1.5, type: "dashed", color: color("--muted") },
        itemStyle: { color: color("--muted") },
      })),
    ],
  });

  const drawScatter = (figure) => frame({
    color: palette,
    tooltip: {
      trigger: "item",
      formatter: (at) => {
        const box = document.createElement("div");
        const [ratio, error, name, saved] = at.data;
        box.textContent = `${name}: ${short(ratio)} times smaller, error ${short(error)}, ${megabytes(saved)} saved`;
        box.style.whiteSpace = "normal";
        box.style.maxWidth = "260px";
        return box;
      },
    },
    xAxis: { type: "log", name: "times smaller", axisLabel: { color: color("--muted"), formatter: short } },
    yAxis: { type: "log", name: "share of the gradient's variance", nameGap: 52,
             axisLabel: { color: color("--muted"), formatter: short } },
    series: figure.groups.map((group) => ({
      name: group.label, type: "scatter", data: group.points,
      symbolSize: (point) => 6 + 14 * Math.sqrt(point[3] / figure.most_bytes),
      itemStyle: { opacity: 0.75, borderColor: color("--surface"), borderWidth: 1 },
    })),
  });

  const drawReadings = (figure) => frame({
    color: tones().slice(0, 2),
    tooltip: { valueFormatter: short },
    xAxis: { name: "step", minInterval: 1 },
    yAxis: { name: "share of the gradient's variance", min: 0, nameGap: 46,
             axisLabel: { color: color("--muted"), formatter: short } },
    series: figure.series.map((curve) => ({
      name: curve.label, type: "line", symbolSize: 8, data: curve.points, lineStyle: { width: 2 },
    })),
  });

  const drawTimes = (figure) => frame({
    color: ["#2563eb", "#0d9488", "#9333ea", "#d97706", "#64748b", "#94a3b8"],
    tooltip: { axisPointer: { type: "shadow" }, valueFormatter: (value) => short(value) + " ms" },
    grid: { top: 6 },
    xAxis: { name: "ms a step (medians)", min: 0 },
    yAxis: { type: "category", data: figure.labels, inverse: true, splitLine: { show: false },
             axisLabel: { color: color("--text"), width: 110, overflow: "break" } },
    series: figure.parts.map((part) => ({
      name: part.label, type: "bar", stack: "all", barMaxWidth: 44, data: part.values_ms,
    })),
  });

  const drawings = {
    before: () => drawStack(data.memory.before), after: () => drawStack(data.memory.after),
    loss: () => drawCurves(data.loss), score: () => drawCurves(data.score),
    error: () => drawScatter(data.error), readings: () => drawReadings(data.readings),
    times: () => drawTimes(data.times),
  };

  const drawAll = () => {
    for (const { chart, draw } of charts) chart.setOption(draw(), true);
  };

  for (const place of document.querySelectorAll(".chart[data-figure]")) {
    const chart = echarts.init(place, null, { renderer: "svg" });
    charts.push({ chart, draw: drawings[place.dataset.figure] });
    new ResizeObserver(() => chart.resize()).observe(place);
  }
  drawAll();

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  narrow.addEventListener("change", drawAll);
  for (const [event, width] of [["beforeprint", 660], ["afterprint", undefined]]) {
    addEventListener(event, () => {
      for (const { chart } of charts) {
        const paired = chart.getDom().closest(".pair");
        chart.resize({ width: width && paired ? width / 2 : width });
      }
      drawAll();
    });
  }

  const scale = document.getElementById("scale");
  scale?.addEventListener("click", () => {
    sameScale = !sameScale;
    scale.setAttribute("aria-pressed", String(sameScale));
    drawAll();
  });

  const sortBy = (heading) => {
    const table = heading.closest("table"), body = table.tBodies[0];
    const column = heading.cellIndex;
    const down = heading.getAttribute("aria-sort") !== "descending";
    for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => {
      const cell = row.cells[column];
      return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
    };
    const rows = [...body.rows].sort((a, b) => {
      const x = key(a), y = key(b);
      const order = typeof x === "number" ? x - y : x.localeCompare(y, undefined, { numeric: true });
      return down ? -order : order;
    });
    body.append(...rows);
    const said = table.closest("section")?.querySelector(".sorted");
    if (said) said.textContent = `Sorted by ${heading.textContent}, ${down ? "largest" : "smallest"} first.`;
  };
  for (const button of document.querySelectorAll("th button")) {
    button.addEventListener("click", () => sortBy(button.closest("th")));
  }
  document.documentElement.dataset.drawn = String(charts.length);
})();
