// Explores sharing plans: reads the one that is typed, picked or clicked together, draws it, and tells what it costs and
// scores. A level has a mode and the groups of tasks that share; the grammar is that of mtbert/sharing/plan.py.
for (const root of document.querySelectorAll(".plans:not(.is-ready)")) {
  root.classList.add("is-ready");
  const { tasks, labels, modes, encoders, stored } = JSON.parse(root.dataset.content);
  const make = (tag, fields = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), fields);
    element.append(...children);
    return element;
  };
  const typed = make("input", { ariaLabel: "plan", value: "hybrid-3", size: 22, spellcheck: false });
  const picked = make("select", { ariaLabel: "plans with stored runs" });
  const encoder = make("select", { ariaLabel: "encoder" });
  const error = make("p", { role: "alert" }), drawing = make("div", { className: "drawing" }), facts = make("table");
  const byTask = (a, b) => tasks.indexOf(a) - tasks.indexOf(b);
  const ofMode = mode => ({ mode, groups: mode === "I" ? tasks.map(task => [task]) : [tasks] });
  const isSplit = ({ mode, groups }) => mode === "S" && groups.length > 1;
  const written = one => one.mode + (isSplit(one) ? `(${one.groups.map(String).join("|")})` : "");

  // Text -> levels from the embeddings to the pooler; throws what is wrong.
  const read = (text, layers) => {
    const mode = { "1-bert": "S", "3-bert": "I", frozen: "F" }[text], hybrid = /^hybrid-(\d+)$/.exec(text);
    const expanded = mode ? mode + layers : hybrid ? `S${hybrid[1]} I${layers - hybrid[1]}` : text;
    const plan = [], ends = {};
    for (const word of expanded.match(/(?:[^\s(]|\([^)]*\)?)+/g) ?? []) {
      const [, end, mode, count, names] = /^(?:(emb|pool):)?([FSI])(\d*)(?:\(([^()]*)\))?$/.exec(word) ?? [];
      const groups = names?.split("|").map(group => group.match(/[^\s,]+/g) ?? []).filter(group => group.length);
      const isMisplaced = ends.pool || (end === "emb" && (ends.emb || plan.length));
      if (!mode || isMisplaced || (end ? count : !+count))
        throw `"${word}" cannot be read: a segment is F, S or I and its number of layers, such as F2, S4 or I6`;
      if (groups && (mode !== "S" || groups.flat().sort(byTask).join() !== tasks.join()))
        throw `"${word}" cannot be read: groups are for S and name every task once, such as S4(sst,quora|sts)`;
      const one = groups ? { mode, groups: groups.map(group => group.sort(byTask)).sort((a, b) => byTask(a[0], b[0])) } : ofMode(mode);
      if (end) ends[end] = one;
      else plan.push(...Array(+count).fill(one));
    }
    if (plan.length !== layers) throw `${plan.length} layers in all, but the encoder has ${layers}`;
    return [ends.emb ?? plan[0], ...plan, ends.pool ?? plan.at(-1)];
  };

  // Levels -> text; equal neighbours become one segment.
  const write = levels => {
    const [bottom, ...plan] = levels.map(written), top = plan.pop(), starts = [];
    plan.forEach((word, i) => word !== plan[i - 1] && starts.push(i));
    const words = starts.map((start, i) => plan[start][0] + ((starts[i + 1] ?? plan.length) - start) + plan[start].slice(1));
    if (bottom !== plan[0]) words.unshift(`emb:${bottom}`);
    if (top !== plan.at(-1)) words.push(`pool:${top}`);
    return words.join(" ");
  };

  // A row per level, which a click changes, with a box per task; boxes of one group that are neighbours touch.
  const draw = (levels, layers) => {
    const rows = levels.map((one, i) => {
      const name = i === 0 ? "embeddings" : i > layers ? "pooler" : `layer ${i}`;
      const boxes = tasks.map((task, j) => {
        const group = one.groups.findIndex(group => group.includes(task));
        const mode = isSplit(one) && one.groups[group].length === 1 ? "I" : one.mode;
        const box = make("i", { textContent: isSplit(one) ? "abc"[group] : "" });
        box.style.background = modes[mode].colour;
        box.classList.toggle("joined", one.groups[group].includes(tasks[j + 1]));
        return box;
      });
      const onclick = () => { // the ends follow the first and the last layer
        const changes = k => k === i || (i === 1 && k === 0) || (i === layers && k === i + 1);
        const next = ofMode({ F: "S", S: "I", I: "F" }[one.mode]);
        typed.value = write(levels.map((other, k) => (changes(k) ? next : other)));
        show();
        drawing.children[layers + 1 - i].focus();
      };
      return make("button", { onclick, type: "button", title: modes[one.mode].name }, make("span", {}, name), ...boxes);
    });
    drawing.replaceChildren(...rows.reverse(), make("p", {}, ...["", ...labels].map(label => make("span", {}, label))));
  };

  const show = () => {
    const { layers, sizes } = encoders[encoder.value];
    error.textContent = "";
    let levels;
    try {
      levels = read(typed.value.trim(), layers);
    } catch (problem) {
      error.textContent = problem;
      return;
    }
    draw(levels, layers);
    const size = i => (i === 0 ? sizes.embeddings : i > layers ? sizes.pooler : sizes.layer);
    const sum = of => levels.reduce((total, one, i) => total + of(one) * size(i), 0);
    const all = sum(one => one.groups.length), trained = sum(one => (one.mode === "F" ? 0 : one.groups.length));
    const run = encoder.selectedIndex ? null : stored.find(run => String(read(run.plan, layers).map(written)) === String(levels.map(written)));
    picked.value = run?.plan ?? "";
    const rows = {
      "parameters of the encoder": `${(all / 1e6).toFixed(1)} million, ${(all / sum(() => 1)).toFixed(2)} times 1-bert`,
      "trained parameters": `${(trained / 1e6).toFixed(1)} million`,
      "memory of weights, gradients and moments": `${((4 * (all + 3 * trained)) / 2 ** 20).toFixed(0)} MiB`,
      ...(run?.facts ?? { "stored runs": "none of this plan" }),
    };
    facts.replaceChildren(...Object.entries(rows).map(([name, value]) => make("tr", {}, make("th", {}, name), make("td", {}, value))));
  };

  for (const name of Object.keys(encoders)) encoder.add(new Option(name));
  picked.add(new Option("plans with stored runs", ""));
  for (const run of stored) picked.add(new Option(`${run.plan}: ${run.facts["overall score"]}`, run.plan));
  picked.onchange = () => {
    encoder.selectedIndex = 0;
    typed.value = picked.value || typed.value;
    show();
  };
  typed.oninput = encoder.onchange = show;
  root.replaceChildren(make("div", { className: "filters" }, typed, picked, encoder), error, make("div", { className: "both" }, drawing, facts));
  show();
}
