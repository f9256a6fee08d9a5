"use strict";

const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const make = (name, text = "", kind = "") => Object.assign(document.createElement(name), { textContent: text, className: kind });

// -- filters: chosen names hold for every table and plot, a search for its own table ---------------------------------

const form = document.getElementById("choose");

function chosenHere(element) {
  return all("select", form).every(({ name, value }) => !value || !(name in element.dataset) || element.dataset[name] === value);
}

function filter() {
  for (const section of all("section.table")) {
    const words = section.querySelector("input[type=search]").value.toLowerCase().split(/\s+/).filter(Boolean);
    all("tr.detail", section).forEach(close);
    const rows = all("tbody tr", section);
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !(chosenHere(row) && words.every((word) => text.includes(word)));
    }
    const left = rows.filter((row) => !row.hidden).length;
    section.querySelector(".count").textContent = left === rows.length ? `${left} rows` : `${left} of ${rows.length} rows`;
  }
  for (const plot of all("figure[data-model]")) plot.hidden = !chosenHere(plot);
}

form.addEventListener("change", filter);
form.addEventListener("reset", () => setTimeout(filter));
form.addEventListener("submit", (event) => event.preventDefault());
all("input[type=search]").forEach((input) => input.addEventListener("input", filter));

// -- sorting: numbers by value, texts by the alphabet, what is not known last ----------------------------------------

function value(row, column) {
  const text = row.cells[column].textContent.trim();
  const number = parseFloat(text);
  return text === "–" || text === "" ? null : Number.isNaN(number) ? text : number;
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

function sort(table, column, descending) {
  all("tr.detail", table).forEach(close);
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => [value(row, column), row]);
  const known = rows.filter(([key]) => key !== null).sort((a, b) => compare(a[0], b[0]) * (descending ? -1 : 1));
  body.append(...[...known, ...rows.filter(([key]) => key === null)].map(([, row]) => row));
  all("th", table).forEach((head, place) => {
    if (place === column) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  });
}

for (const table of all("section.table table")) {
  const menu = table.closest("section").querySelector(".sorting select");
  all("th", table).forEach((head, column) => {
    const button = head.querySelector("button");
    if (!button) return;
    menu.append(new Option(button.textContent, column));
    button.addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      sort(table, column, before ? before === "ascending" : head.classList.contains("num"));
    });
  });
  menu.addEventListener("change", () => {
    if (menu.value !== "") sort(table, Number(menu.value), table.rows[0].cells[menu.value].classList.contains("num"));
  });
}

// -- how a row was run -----------------------------------------------------------------------------------------------

const runs = JSON.parse(document.getElementById("runs").textContent);

function close(detail) {
  detail.previousElementSibling.querySelector("td.open button").setAttribute("aria-expanded", "false");
  detail.remove();
}

function open(row, button) {
  const cell = make("td");
  cell.colSpan = row.cells.length;
  for (const path of row.dataset.runs.split(" ")) {
    const run = runs[path];
    cell.append(make("strong", path), make("pre", run.command || "the command is not on record", "command"));
    const more = make("details");
    const records = [["settings (config.yaml)", run.config], ["manifest (manifest.json)", run.manifest]];
    more.append(make("summary", "settings and manifest"));
    for (const [heading, text] of records) more.append(make("div", heading), make("pre", text));
    cell.append(more);
  }
  const detail = make("tr", "", "detail");
  detail.append(cell);
  row.after(detail);
  button.setAttribute("aria-expanded", "true");
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("td.open button");
  if (!button) return;
  const row = button.closest("tr");
  const next = row.nextElementSibling;
  if (next && next.classList.contains("detail")) close(next);
  else open(row, button);
});

// -- one sample's decoding, step by step -----------------------------------------------------------------------------

const traces = JSON.parse(document.getElementById("traces").textContent);
const [CACHED, COMPUTED, CANDIDATE, COMMITTED] = [0, 1, 2, 3];
const NAMES = ["cached", "computed", "candidate", "committed"];

const channels = (hex) => [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
const tint = (rgb, share) => rgb.map((channel) => Math.round(255 - share * (255 - channel)));

function states(trace, step) {
  const line = new Uint8Array(trace.rows);
  const fill = (spans, state) => spans.forEach(([first, last]) => line.fill(state, first, last + 1));
  fill(step.computed, COMPUTED);
  fill(step.predicted, CANDIDATE);
  step.committed.forEach((row) => { line[row] = COMMITTED; });
  return line;
}

function stage(section) {
  const part = (name) => section.querySelector(name);
  const [menu, slider, canvas] = [part("select"), part("input[type=range]"), part("canvas")];
  let trace, lines, playing;

  function choose() {
    trace = traces[menu.value];
    lines = trace.steps.map((step) => states(trace, step));
    const rgb = trace.colour === "#000000" ? [102, 102, 102] : channels(trace.colour);
    const shades = [[244, 244, 244], tint(rgb, 0.45), rgb, [0, 0, 0]];
    section.style.setProperty("--tint", `rgb(${tint(rgb, 0.35)})`);
    section.style.setProperty("--trace", `rgb(${rgb})`);
    canvas.width = trace.rows;
    canvas.height = lines.length;
    const image = new ImageData(trace.rows, lines.length);
    lines.forEach((line, y) => line.forEach((state, x) => image.data.set([...shades[state], 255], 4 * (y * trace.rows + x))));
    canvas.getContext("2d").putImageData(image, 0, 0);
    part(".edge").style.left = `calc(14px + (100% - 14px) * ${trace.prompt / trace.rows})`;
    part(".refreshes").replaceChildren(...trace.steps.flatMap((step, number) => {
      if (!step.refresh) return [];
      const mark = make("i");
      mark.style.top = `${(100 * (number + 0.5)) / lines.length}%`;
      return [mark];
    }));
    slider.max = lines.length - 1;
    part(".answer").textContent = trace.text;
    show(0);
  }

  function show(number) {
    const step = trace.steps[number];
    slider.value = number;
    part(".now").style.top = `${(340 * (number + 0.5)) / lines.length}px`;
    const line = lines[number];
    const computed = step.computed.reduce((sum, [first, last]) => sum + last - first + 1, 0);
    const inPrompt = step.computed.reduce((sum, [first, last]) => sum + Math.max(0, Math.min(last, trace.prompt - 1) - first + 1), 0);
    part(".said").textContent = [
      `Step ${number + 1} of ${lines.length}${step.refresh ? ": refresh" : ""}`,
      `${computed} of ${trace.rows} rows computed, ${inPrompt} of them in the prompt`,
      `${step.committed.length} committed`,
      step.entropy === null ? "" : `highest entropy ${step.entropy.toFixed(3)} nats`,
      `${step.ms.toFixed(2)} ms`,
    ].filter(Boolean).join(" · ");
    const known = new Set(trace.steps.slice(0, number + 1).flatMap(({ committed }) => committed));
    part(".tokens").replaceChildren(...trace.pieces.map((piece, place) => {
      const row = trace.prompt + place;
      const text = known.has(row) ? piece.replaceAll("\n", "⏎") || " " : "·";
      const cell = make("span", text, known.has(row) || line[row] !== CACHED ? NAMES[line[row]] : "masked");
      cell.title = `row ${row}: ${known.has(row) ? "decoded" : "masked"}, ${NAMES[line[row]]} in this step`;
      return cell;
    }));
  }

  const at = () => Number(slider.value);
  const to = (number) => show(Math.min(lines.length - 1, Math.max(0, number)));
  function play(start) {
    clearInterval(playing);
    playing = start ? setInterval(() => (at() + 1 < lines.length ? to(at() + 1) : play(false)), 250) : null;
    part(".play").textContent = start ? "pause" : "play";
  }

  menu.addEventListener("change", () => { play(false); choose(); });
  slider.addEventListener("input", () => { play(false); show(at()); });
  part(".back").addEventListener("click", () => { play(false); to(at() - 1); });
  part(".next").addEventListener("click", () => { play(false); to(at() + 1); });
  part(".play").addEventListener("click", () => { if (at() + 1 >= lines.length) show(0); play(!playing); });
  canvas.addEventListener("click", (event) => to(Math.floor((event.offsetY / canvas.clientHeight) * lines.length)));
  choose();
}

all("#decoding").forEach(stage);
filter();
