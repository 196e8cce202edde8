(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const narrow = matchMedia("(max-width: 34rem)");
  // The page's colours, laid over the axes that each figure brings along.
  function themed(layout) {
    const style = getComputedStyle(document.documentElement);
    const color = (name) => style.getPropertyValue(name).trim();
    const axis = {automargin: true, gridcolor: color("--grid"), linecolor: color("--line"), zerolinecolor: color("--line")};
    return {
      ...layout,
      xaxis: {...axis, zeroline: false, ...layout.xaxis},
      yaxis: {...axis, ...layout.yaxis},
      font: {family: getComputedStyle(document.body).fontFamily, size: 12, color: color("--ink")},
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      hoverlabel: {bgcolor: color("--card"), bordercolor: color("--line"), font: {color: color("--ink")}, namelength: -1},
      legend: {orientation: "h", x: 0, y: 1.02, yanchor: "bottom", traceorder: "normal", bgcolor: "rgba(0,0,0,0)"},
      margin: narrow.matches ? {l: 44, r: 6, t: 30, b: 40} : {l: 58, r: 14, t: 30, b: 44},
      modebar: {bgcolor: "rgba(0,0,0,0)", color: color("--line"), activecolor: color("--soft")},
    };
  }
  const config = {
    responsive: true, displaylogo: false, displayModeBar: narrow.matches ? false : "hover",
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  };
  function draw() {
    for (const [id, figure] of Object.entries(figures)) {
      Plotly.react(id, figure.data, themed(figure.layout), config);
    }
  }
  draw();
  dark.addEventListener("change", draw);
  narrow.addEventListener("change", draw);
})();
