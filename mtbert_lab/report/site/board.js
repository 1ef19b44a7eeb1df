// Above each .board: a choice for every marked column, words to search for, and how many rows are shown.
for (const board of document.querySelectorAll(".board:not(.is-ready)")) {
  board.classList.add("is-ready");
  const table = board.querySelector("table"), rows = [...table.tBodies[0].rows], choices = [];
  const text = (row, column) => row.cells[column].textContent.trim();
  const make = (tag, fields) => Object.assign(document.createElement(tag), fields);
  const bar = make("div", { className: "filters" });
  const words = make("input", { type: "search", placeholder: "search", ariaLabel: "words in a row" });
  const shown = make("output");
  const filter = () => {
    const wanted = words.value.toLowerCase();
    for (const row of rows)
      row.hidden = !row.textContent.toLowerCase().includes(wanted)
        || choices.some(([column, choice]) => choice.value && text(row, column) !== choice.value);
    shown.textContent = `${rows.filter(row => !row.hidden).length} of ${rows.length} claims`;
  };
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    if (!("filter" in heading.dataset)) return;
    const choice = make("select", { ariaLabel: heading.textContent, onchange: filter });
    const counts = Map.groupBy(rows, row => text(row, column));
    choice.add(new Option(`${heading.textContent}: all`, ""));
    for (const [value, same] of [...counts].sort()) choice.add(new Option(`${value} (${same.length})`, value));
    choices.push([column, choice]);
    bar.append(choice);
  });
  words.oninput = filter;
  bar.append(words, shown);
  board.before(bar);
  filter();
}
