// Sorting, filtering and the theme. Without it the page is whole, only still.
"use strict";
const numberOf = (cell) => {
  const found = cell.dataset.v ?? cell.textContent;
  return found === "" ? NaN : Number(found);
};
function sortBy(header) {
  const table = header.closest("table");
  const body = table.tBodies[0];
  const column = header.cellIndex;
  const down = header.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", down ? "descending" : "ascending");
  const compared = (a, b) => {
    const x = a.cells[column], y = b.cells[column];
    const n = numberOf(x), m = numberOf(y);
    if (Number.isNaN(n) !== Number.isNaN(m)) return Number.isNaN(n) ? 1 : -1;
    const order = Number.isNaN(n) ? x.textContent.localeCompare(y.textContent) : n - m;
    return down ? -order : order;
  };
  body.append(...[...body.rows].sort(compared));
}
function filter(words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const row of document.querySelectorAll("table.ranked tbody tr, table.offers tbody tr")) {
    const section = row.closest("section");
    // An offer is found by what is measured on its machine, too.
    const of = row.dataset.of && section.querySelector(`tr[data-entry="${row.dataset.of}"]`).textContent;
    const text = [row.textContent, of, section.id].join(" ").toLowerCase();
    row.hidden = !wanted.every((word) => text.includes(word));
    shown += !row.hidden;
  }
  document.getElementById("shown").textContent = wanted.length ? `${shown} rows` : "";
}
document.addEventListener("click", (event) => {
  const button = event.target.closest("th button");
  if (button) sortBy(button.parentElement);
  if (event.target.id === "theme") {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  }
});
document.getElementById("filter").addEventListener("input", (event) => filter(event.target.value));
for (const tool of document.querySelectorAll(".tools")) tool.hidden = false;
document.documentElement.dataset.ready = "yes";
