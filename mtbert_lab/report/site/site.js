// The switch for all code of the report, remembered from page to page.
const all = document.getElementById("show-code");
if (all) {
  const cells = document.querySelectorAll("details.hide");
  const show = () => cells.forEach(cell => (cell.open = all.checked));
  all.checked = localStorage.getItem("show-code") === "yes";
  if (all.checked) show();
  all.onchange = () => {
    localStorage.setItem("show-code", all.checked ? "yes" : "no");
    show();
  };
}

// The name of an index is the heading of its column; pandas gives it a line of its own.
for (const { tHead } of document.querySelectorAll("table.dataframe")) {
  if (tHead?.rows.length !== 2) continue;
  const [headings, ofIndex] = tHead.rows;
  const [name, ...others] = [...ofIndex.cells].map(cell => cell.textContent.trim());
  const isPlain = headings.cells.length === ofIndex.cells.length && !headings.cells[0].textContent.trim();
  if (!isPlain || !name || others.some(Boolean)) continue;
  headings.cells[0].textContent = name;
  ofIndex.remove();
}

// A click on the heading of a column, or Enter, sorts the table by it; once more reverses the order.
for (const table of document.querySelectorAll("table.dataframe")) {
  table.tHead?.removeAttribute("onclick"); // sorts in JupyterLab
  const body = table.tBodies[0], headings = [...(table.tHead?.rows[0].cells ?? [])];
  if (body.rows.length < 3 || body.rows[0].cells.length !== headings.length || body.querySelector("[rowspan]")) continue;
  headings.forEach((heading, column) => {
    const text = row => row.cells[column].innerText;
    const number = row => parseFloat(text(row).replaceAll(",", "").replace("−", "-"));
    const order = (a, b) => number(a) - number(b) || text(a).localeCompare(text(b));
    const sort = () => {
      const descending = heading.ariaSort === "ascending";
      for (const other of headings) other.ariaSort = null;
      heading.ariaSort = descending ? "descending" : "ascending";
      body.append(...[...body.rows].sort((a, b) => (descending ? order(b, a) : order(a, b))));
    };
    heading.tabIndex = 0;
    heading.onclick = sort;
    heading.onkeydown = event => event.key === "Enter" && sort();
  });
}
