"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const palette = ["#0d9488", "#2563eb", "#d97706", "#9333ea", "#dc2626", "#65a30d",
                   "#0891b2", "#db2777", "#a16207", "#4f46e5", "#059669", "#64748b"];
  const charts = [];
  const color = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const short = (value) => {
    if (value === 0) return "0";
    const size = Math.abs(value);
    return size >= 1e-3 && size < 1e5 ? String(+value.toPrecision(3)) : value.toExponential(1);
  };

  const frame = (figure, yAxis, series, marks) => {
    const text = color("--text"), muted = color("--muted"), line = color("--line");
    const axis = (given) => ({
      nameLocation: "middle", nameTextStyle: { color: muted },
      axisLabel: { color: muted, hideOverlap: true, formatter: short },
      axisLine: { lineStyle: { color: line }, onZero: false }, axisTick: { show: false },
      splitLine: { lineStyle: { color: line, opacity: 0.7 } }, ...given,
    });
    return {
      animation: false, color: palette, backgroundColor: "transparent",
      textStyle: { color: text, fontFamily: "system-ui, sans-serif" },
      grid: { left: 12, right: 18, top: 16, bottom: 40, outerBoundsMode: "same", outerBoundsContain: "all" },
      legend: { type: "scroll", bottom: 0, icon: "circle", itemWidth: 10, itemHeight: 10,
                data: figure.series.map((one) => one.label), textStyle: { color: text },
                pageTextStyle: { color: muted }, pageIconColor: text, pageIconInactiveColor: line },
      tooltip: {
        trigger: "item", confine: true, backgroundColor: color("--surface"), borderColor: line,
        textStyle: { color: text, fontSize: 12 },
        formatter: (at) => {
          const box = document.createElement("div");
          box.textContent = at.data[2] ?? at.seriesName;
          box.style.whiteSpace = "normal";
          box.style.maxWidth = "260px";
          return box;
        },
      },
      xAxis: axis({ type: "log", name: "times smaller", nameGap: 24, scale: true }),
      yAxis: axis({ nameGap: 52, ...yAxis }),
      series: [...series, ...marks],
    };
  };

  const dots = (figure, joined) => figure.series.map((one, number) => ({
    name: one.label, type: joined ? "line" : "scatter", data: one.points,
    color: palette[number % palette.length], symbol: "circle", symbolSize: 9,
    lineStyle: { width: 1.5 }, itemStyle: { opacity: 0.9, borderColor: color("--surface"), borderWidth: 1 },
  }));
  const ruler = (name, at, ends) => ({
    name, type: "line", symbol: "none", silent: true, data: ends.map((x) => [x, at]),
    lineStyle: { color: color("--muted"), type: "dashed", width: 1 },
  });

  const drawGain = (figure) => frame(
    figure, { type: "value", name: figure.name, scale: true }, dots(figure, false),
    [
      ruler("plain", 0, figure.ends),
      ...figure.series.flatMap((one, number) => one.points.filter((point) => point[3] != null).map(
        (point) => ({
          name: one.label, type: "line", symbol: "none", silent: true,
          data: [[point[0], point[1] - point[3]], [point[0], point[1] + point[3]]],
          lineStyle: { color: palette[number % palette.length], width: 1.5 },
        }))),
    ]);
  const drawError = (figure) => frame(
    figure, { type: "log", name: "share of the gradient's variance" }, dots(figure, true),
    [ruler("tolerance 0.1", 0.1, figure.ends)]);

  const drawAll = () => {
    for (const { chart, draw } of charts) chart.setOption(draw(), true);
  };
  for (const place of document.querySelectorAll(".chart[data-figure]")) {
    const figure = data[place.dataset.figure];
    const draw = figure.sort === "gain" ? drawGain : drawError;
    const chart = echarts.init(place, null, { renderer: "svg" });
    charts.push({ chart, draw: () => draw(figure) });
    new ResizeObserver(() => chart.resize()).observe(place);
  }
  drawAll();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  for (const [event, width] of [["beforeprint", 330], ["afterprint", undefined]]) {
    addEventListener(event, () => {
      for (const { chart } of charts) chart.resize({ width });
      drawAll();
    });
  }

  for (const button of document.querySelectorAll("th button")) {
    button.addEventListener("click", () => {
      const heading = button.closest("th"), body = heading.closest("table").tBodies[0];
      const down = heading.getAttribute("aria-sort") !== "descending";
      for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => {
        const cell = row.cells[heading.cellIndex];
        return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
      };
      const order = (a, b) => {
        const x = key(a), y = key(b);
        const way = typeof x === "number" && typeof y === "number"
          ? x - y : String(x).localeCompare(String(y), undefined, { numeric: true });
        return down ? -way : way;
      };
      body.append(...[...body.rows].sort(order));
    });
  }
  document.documentElement.dataset.drawn = String(charts.length);
})();
