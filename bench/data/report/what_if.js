// What-if: shows its section, reads the controls and the link, and writes the answers that follow from them.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("what-if-data").textContent);
  const section = document.getElementById("what-if");
  const form = section.querySelector("form");
  const answers = document.getElementById("what-if-answers");
  const state = document.getElementById("what-if-state");
  const { appraise, figures, intervalText, moneyText, wholeText, countText, percentText, fixed, parse } = rules;
  const money = (amount) => moneyText(amount, data.sign);
  const make = (name, text, attributes = {}) => {
    const element = document.createElement(name);
    element.textContent = text;
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  };

  // Controls. Each has a value, null for no limit or no rent, and what was asked.
  const machines = data.models.flatMap((model) => model.machines);
  const reads = { budget: parse.positive, deadline: parse.days, runs: parse.count, utilisation: parse.percent };
  const spells = { utilisation: (share) => String(Number((100 * share).toPrecision(12))) };
  const controls = new Map([...form.querySelectorAll("input[name]")].map((field) => {
    const [kind, ...label] = field.name.split(":");
    const slider = field.closest("div").querySelector("input[type=range]");
    const rents = machines.filter((one) => one.label === label.join(":")).map((one) => one.rent);
    const asked = kind === "rent" ? rents.find((rent) => rent !== null) ?? null : data.asked[kind];
    return [field.name, {
      kind, field, slider, asked, value: asked,
      mayBeEmpty: kind === "budget" || kind === "deadline" || kind === "rent",
      read: reads[kind] ?? parse.positive,
      spell: spells[kind] ?? String,
      low: Number(slider.dataset.low), high: Number(slider.dataset.high),
    }];
  }));
  const empty = (control) => control.field.placeholder.split(";")[0];
  const spelled = (control) => (control.value === null ? "" : control.spell(control.value));
  const reading = (control, text) => {
    if (text.trim() === "") return control.mayBeEmpty ? { value: null } : { mistake: "a number is needed" };
    return control.read(text.trim());
  };
  function show(control) {
    control.field.value = spelled(control);
    refuse(control, "");
    place(control);
  }
  function refuse(control, mistake) {
    control.field.setAttribute("aria-invalid", String(mistake !== ""));
    document.getElementById(control.field.getAttribute("aria-describedby")).textContent = mistake;
  }
  function write(control, text) {
    const { value, mistake } = reading(control, text);
    refuse(control, mistake ?? "");
    if (mistake === undefined) control.value = value;
    place(control);
  }

  // A slider has a logarithmic scale; its right end is no limit, if the control may have none.
  const limited = (control) => control.kind === "budget" || control.kind === "deadline";
  function place(control) {
    const { slider, value, low, high } = control;
    const steps = Number(slider.max);
    const share = Math.log(at(control) / low) / Math.log(high / low);
    slider.value = value !== null ? Math.round(steps * share) : limited(control) ? steps : 0;
    slider.setAttribute("aria-valuetext", spelled(control) || empty(control));
  }
  const at = (control) => (control.kind === "utilisation" ? 100 * control.value : control.value);
  function slide(control) {
    const { slider, low, high, kind } = control;
    const position = Number(slider.value), steps = Number(slider.max);
    const value = low * (high / low) ** (position / steps);
    const text = kind === "runs" ? String(Math.round(value)) : String(Number(value.toPrecision(3)));
    control.value = limited(control) && position === steps ? null : control.read(text).value;
    control.field.value = spelled(control);
    refuse(control, "");
    slider.setAttribute("aria-valuetext", spelled(control) || empty(control));
  }

  // The link: #SECTION?budget=5000&rent:2x+H200=6, with what differs from what was asked.
  const changes = () => [...controls.values()].filter((control) => control.value !== control.asked);
  function linkOf(anchor) {
    const changed = changes();
    const parameters = new URLSearchParams(changed.map((control) => [control.field.name, spelled(control)]));
    return changed.length ? `#${anchor}?${parameters}` : `#${anchor}`;
  }
  const parted = () => {
    const found = /^#(.*)\?([^?]*=[^?]*)$/.exec(location.hash);
    return found ? { anchor: found[1], parameters: new URLSearchParams(found[2]) } : { anchor: location.hash.slice(1) };
  };
  const keep = (anchor) => history.replaceState(null, "", linkOf(anchor));
  function follow() {
    const { anchor, parameters } = parted();
    if (!parameters) {
      // A link inside of the page leads elsewhere, and takes what was changed along.
      if (anchor && changes().length) keep(anchor);
      return;
    }
    for (const control of controls.values()) {
      control.value = control.asked;
      show(control);
      const text = parameters.get(control.field.name);
      if (text === null) continue;
      control.field.value = text;
      write(control, text);
    }
    answer();
    section.querySelector("details").open = true;
    const inside = [...document.querySelectorAll("a[href^='#']")].find((link) => link.hash === `#${anchor}`);
    const target = document.getElementById(inside ? inside.getAttribute("href").slice(1) : anchor);
    if (target) target.scrollIntoView();
  }

  // Answers: for each model what was asked for, and a table of every offer.
  const heads = ["rank", "", "machine", "days", "price", "a run", ""];
  const spoken = ["", "buy or rent", "", "", "", "", "what it comes to"];
  const blocks = data.models.map((model) => {
    const list = make("ul", "", { class: "said", "aria-live": "polite" }), body = make("tbody", ""), row = make("tr", "");
    row.append(...heads.map((head, i) => {
      const cell = make("th", head, { scope: "col", ...(i === 1 || i === 2 || i === 6 ? { class: "t" } : {}) });
      if (!head) cell.append(make("span", spoken[i], { class: "heard" }));
      return cell;
    }));
    const thead = make("thead", ""), table = make("table", "", { class: "stacked" });
    thead.append(row);
    table.append(thead, body);
    const name = `${model.title}: what if`;
    const scroll = make("div", "", { class: "scroll", role: "region", tabindex: "0", "aria-label": name });
    scroll.append(table);
    const details = make("details", "");
    details.append(make("summary", "every offer"), scroll);
    details.open = data.models.length === 1;
    answers.append(make("h3", model.title), list, details);
    return { list, body };
  });

  function answer() {
    const now = (name) => controls.get(name).value;
    const wish = { budget: now("budget"), deadline: now("deadline"), runs: now("runs") };
    const utilisation = now("utilisation");
    const changed = changes().map((control) => control.field.labels[0].textContent);
    state.textContent = changed.length ? `Changed: ${changed.join("; ")}` : "As it was asked";
    data.models.forEach((model, i) => {
      const given = model.machines.map((machine) => {
        const control = machine.rentable ? controls.get(`rent:${machine.label}`) : undefined;
        const own = control !== undefined && control.value !== control.asked;
        return { ...machine, rent: own ? control.value : machine.rent, own };
      });
      const found = appraise(given, wish, data.life_days, utilisation);
      const shown = found.machines.map((appraised, at) => ({ machine: given[found.order[at]], ...appraised }));
      const said = lines(shown, found, wish), { list } = blocks[i];
      // A screen reader reads what is replaced: only what is new.
      if ([...list.children].map((line) => line.textContent).join("\n") !== said.join("\n")) {
        list.replaceChildren(...said.map((line) => make("li", line)));
      }
      blocks[i].body.replaceChildren(...shown.flatMap((one) => rowsOf(one, wish, utilisation)));
    });
  }

  function lines(shown, found, wish) {
    const said = [];
    for (const { machine, offers } of shown) {
      for (const offer of offers.filter((one) => one.marks.length)) {
        const all = wish.runs > 1 ? `, ${money(offer.spend)} for ${countText(wish.runs, "run")}` : "";
        const doubts = machine.doubts.map((doubt) => `; ${doubt}`).join("");
        const paid = `${offer.kind} ${machine.name} at ${priceText(machine, offer)}`;
        said.push(`${offer.marks.join(", ")}: ${paid}: ${intervalText(machine.days)} days, ${money(offer.run_cost)} a run${all}${doubts}`);
      }
    }
    const priced = shown.some((one) => one.offers.length);
    if (found.nothing_in_budget) said.push(`nothing fits the budget of ${money(wish.budget)}`);
    if (found.nothing_in_time) {
      const within = wish.budget !== null && priced ? " within the budget" : "";
      said.push(`nothing${within} is certain to meet the deadline of ${daysText(wish.deadline)}`);
    }
    if (wish.budget === null && wish.deadline === null) said.push("no limit is given: set a budget or a deadline");
    else if (!priced) said.push("no machine has a price");
    return said;
  }

  const daysText = (days) => (figures(days, 4) === "1" ? "1 day" : `${figures(days, 4)} days`);

  const priceText = (machine, { kind }) => (kind === "rent" ? `${money(machine.rent)} an hour` : money(machine.price));

  function rowsOf({ machine, rank, in_time: inTime, offers }, wish, utilisation) {
    const late = inTime === "no";
    const days = intervalText(machine.days);
    if (!offers.length) {
      const notes = inTime === null ? [] : [data.in_time[inTime]];
      return [row([rank, "", machine.name, days, "", "", notes.join("; ")], late ? "beyond" : "")];
    }
    return offers.map((offer) => {
      const beyond = late || offer.in_budget === false || offer.outlived;
      const notes = notesOn(machine, offer, inTime, wish, utilisation).join("; ");
      const texts = [rank, offer.kind, machine.name, days, priceText(machine, offer), money(offer.run_cost), notes];
      return row(texts, offer.marks.length ? "chosen" : beyond ? "beyond" : "");
    });
  }

  function notesOn(machine, offer, inTime, wish, utilisation) {
    const notes = [];
    const life = utilisation === 1 ? data.life : `${data.life}, in use ${percentText(utilisation)} of it`;
    if (offer.marks.length) notes.push(`<- ${offer.marks.join(", ")}`);
    notes.push(...machine.doubts);
    notes.push(...(offer.kind === "rent" && machine.own ? machine.paid_for.own : machine.paid_for[offer.kind]));
    if (offer.in_budget === false) notes.push("over budget");
    if (offer.outlived) notes.push(`too slow for ${countText(wish.runs, "run")} in ${life}`);
    else if (wish.runs > 1) notes.push(`${money(offer.spend)} for ${countText(wish.runs, "run")}`);
    if (inTime !== null) notes.push(data.in_time[inTime]);
    if (offer.kind === "buy" && machine.unmetered) notes.push("without electricity: its power was not measured");
    const even = offer.break_even;
    if (even !== null && even.utilisation <= utilisation) {
      const runs = `${wholeText(even.runs)} runs in ${data.life}`;
      notes.push(`beats the cheapest rent from ${runs} on (${fixed(100 * even.utilisation, 0)}% of its life)`);
    } else if (even !== null) notes.push(`never beats the cheapest rent in ${life}`);
    if (offer.rent_always_less) notes.push("its electricity and upkeep alone cost more than the cheapest rent");
    return notes;
  }

  function row(texts, of) {
    const found = make("tr", "", of ? { class: of } : {});
    found.append(...texts.map((text, i) => {
      const left = i === 1 || i === 2 || i === 6;
      return make("td", text, { ...(left ? { class: "t" } : {}), ...(heads[i] ? { "data-head": heads[i] } : {}) });
    }));
    return found;
  }

  const controlOf = (input) => controls.get(input.closest("div").querySelector("input[name]").name);
  form.addEventListener("input", ({ target }) => {
    if (target.type === "range") slide(controlOf(target));
    else write(controlOf(target), target.value);
    answer();
  });
  form.addEventListener("change", () => keep("what-if"));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    for (const control of controls.values()) {
      control.value = control.asked;
      show(control);
    }
    answer();
    keep("what-if");
  });
  for (const control of controls.values()) show(control);
  answer();
  section.hidden = false;
  document.addEventListener("DOMContentLoaded", follow); // the link may lead to what is not there yet
  window.addEventListener("hashchange", follow);
})();
