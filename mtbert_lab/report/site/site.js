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
