"use strict";
// Sorts the tables of Trials: within the cell that the address names, else over all cells. The page is whole without it.
for (const table of document.querySelectorAll("table.trials")) {
  const rows = [...table.querySelectorAll("tr.trial")];
  const home = new Map(rows.map((row) => [row, row.parentNode]));
  const all = table.createTBody();
  const chosen = () => table.querySelector("tbody:target");
  const place = (sorted) => {
    const cell = chosen();
    table.classList.toggle("sorted", !cell);
    for (const row of sorted) (cell ? home.get(row) : all).append(row);
  };
  const key = (row, column) => {
    const text = row.cells[column].dataset.v ?? row.cells[column].textContent.trim();
    return text === "" ? null : isNaN(text) ? text : Number(text);
  };
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const sign = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const keys = new Map(rows.map((row) => [row, key(row, column)]));
      rows.sort((a, b) => {
        const [x, y] = [keys.get(a), keys.get(b)];
        if (x === null || y === null) return (x === null) - (y === null); // what is not known comes last
        return sign * compare(x, y);
      });
      place(rows);
    });
  });
  addEventListener("hashchange", () => {
    for (const row of rows) home.get(row).append(row);
    table.classList.remove("sorted");
    chosen()?.scrollIntoView();
  });
}
