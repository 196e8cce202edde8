(() => {
  const {figures, config} = JSON.parse(document.getElementById("figures").textContent);
  const note = document.createElement("div");
  note.className = "note";
  note.hidden = true;
  document.body.append(note);
  const lineOf = (text, color) => {
    const line = document.createElement("div");
    if (color) {
      const dot = document.createElement("span");
      dot.className = "dot";
      dot.style.background = color;
      line.append(dot);
    }
    line.append(text);
    return line;
  };
  // Beside the pointer, and within the window.
  function show(event, lines) {
    note.replaceChildren(...lines);
    note.hidden = false;
    const box = note.getBoundingClientRect();
    const left = event.clientX + 14 + box.width > innerWidth ? event.clientX - 14 - box.width : event.clientX + 14;
    const top = event.clientY + 14 + box.height > innerHeight ? event.clientY - 14 - box.height : event.clientY + 14;
    note.style.left = `${Math.max(2, left)}px`;
    note.style.top = `${Math.max(2, top)}px`;
  }
  const digits = (value) => String(Number(value.toPrecision(4)));
  // The row whose x is nearest; rows are in the order of x.
  function nearest(rows, x) {
    let low = 0, high = rows.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (rows[middle].x < x) low = middle; else high = middle;
    }
    return Math.abs(rows[low].x - x) < Math.abs(rows[high].x - x) ? rows[low] : rows[high];
  }
  // Every line's value at the pointer's place.
  function readOut(view, readouts, event) {
    const x = event.clientX - view.container().querySelector("svg").getBoundingClientRect().left - view.origin()[0];
    if (x < 0 || x > view.width()) return (note.hidden = true);
    const at = view.scale("x").invert(x);
    const found = readouts.lines.map(({data, name, color}) => {
      const rows = view.data(data).filter((row) => row.y !== null);
      return rows.length ? {row: nearest(rows, at), name, color} : null;
    }).filter(Boolean);
    if (!found.length) return (note.hidden = true);
    const lines = found.map(({row, name, color}) => lineOf(`${name}: ${digits(row.y)}${readouts.y}`, color));
    show(event, [lineOf(`${readouts.x} ${digits(found[0].row.x)}`), ...lines]);
  }
  for (const [id, {spec, readouts}] of Object.entries(figures)) {
    const tooltip = (handler, event, item, value) => {
      if (value) show(event, String(value).split("\n").map((text) => lineOf(text)));
      else note.hidden = true;
    };
    const options = {mode: "vega", renderer: "svg", actions: false, config, tooltip};
    vegaEmbed(document.getElementById(id), spec, options).then(({view}) => {
      if (!readouts) return;
      view.addEventListener("mousemove", (event, item) => item && item.tooltip || readOut(view, readouts, event));
      view.addEventListener("mouseout", () => { note.hidden = true; });
    });
  }
})();
