// The rules of bench/report/compare/appraisal.py and decision.py, the option values of bench/cli/arguments.py
// and the numbers of bench/records/text.py, for the report's what-if. Pure. Names, order and arithmetic are
// Python's, to the last bit: tests/e2e/test_what_if.py holds every function here against its original.
"use strict";
const rules = (() => {
  // Order, as Python compares texts (by code points) and tuples.
  const byText = (a, b) => {
    const x = [...a], y = [...b];
    const i = x.findIndex((letter, at) => letter !== y[at]);
    if (i < 0) return x.length - y.length;
    return y[i] === undefined ? 1 : x[i].codePointAt(0) - y[i].codePointAt(0);
  };
  const byValue = (a, b) => (typeof a === "string" ? byText(a, b) : a < b ? -1 : a > b ? 1 : 0);
  const by = (keyOf) => (a, b) => {
    const x = keyOf(a), y = keyOf(b);
    const i = x.findIndex((value, at) => byValue(value, y[at]) !== 0);
    return i < 0 ? 0 : byValue(x[i], y[i]);
  };
  const least = (items, keyOf) => [...items].sort(by(keyOf))[0] ?? null;

  // Options: a machine, bought or rented.
  const optionsOf = (machine, utilisation) => {
    const { label, days, price, electricity, upkeep, rent } = machine;
    if (!Number.isFinite(days.value)) return [];
    const found = [];
    const owned = electricity + upkeep * days.value / utilisation;
    if (price !== null) found.push({ label, kind: "buy", days, upfront: price, aRun: owned });
    if (rent !== null) found.push({ label, kind: "rent", days, upfront: 0, aRun: rent * days.value * 24 });
    return found;
  };
  const spend = (o, runs) => o.upfront + runs * o.aRun;
  const spendInterval = (o, runs) => {
    const share = o.days.half_width / o.days.value;
    return { value: spend(o, runs), half_width: runs * o.aRun * share };
  };
  const livesFor = (o, runs, usedDays) => o.kind === "rent" || runs * o.days.value <= usedDays;
  const runCost = (o, lifeDays, utilisation) => o.upfront * o.days.value / (lifeDays * utilisation) + o.aRun;

  // Intervals.
  const joint = (a, b) => Math.sqrt(a.half_width * a.half_width + b.half_width * b.half_width);
  const differs = (a, b) => Math.abs(a.value - b.value) > joint(a, b);
  const surelyMore = (a, b) => a.value - b.value > joint(a, b);
  const meets = (days, deadline) => {
    if (days.value + days.half_width <= deadline) return "yes";
    return days.value - days.half_width <= deadline ? "perhaps" : "no";
  };

  const frontier = (items, cost) => {
    const chosen = [];
    for (const item of [...items].sort(by((i) => [cost(i), i.days.value]))) {
      if (!chosen.length || item.days.value < chosen.at(-1).days.value) chosen.push(item);
    }
    return chosen;
  };

  const decide = (options, wish, usedDays) => {
    const spent = (o) => spend(o, wish.runs);
    const bySpeed = (o) => [o.days.value, spent(o), o.label, o.kind];
    const bySpend = (o) => [spent(o), o.days.value, o.label, o.kind];
    const alike = [...options].sort(by((o) => [o.days.half_width, o.label, o.kind]));
    const every = alike.filter((o) => livesFor(o, wish.runs, usedDays));
    const affordable = every.filter((o) => wish.budget === null || spent(o) <= wish.budget);
    const fastest = wish.budget === null ? null : least(affordable, bySpeed);
    const inTime = affordable.filter((o) => wish.deadline !== null && meets(o.days, wish.deadline) === "yes");
    const cheapest = least(inTime, bySpend);
    const forLess = fastest === null ? [] : frontier(affordable, spent)
      .filter((o) => spent(o) < spent(fastest) && !differs(o.days, fastest.days));
    const faster = cheapest === null ? [] : frontier(inTime, spent)
      .filter((o) => differs(o.days, cheapest.days))
      .filter((o) => !surelyMore(spendInterval(o, wish.runs), spendInterval(cheapest, wish.runs)));
    return { fastest, cheapest, forLess: least(forLess, bySpend), faster: least(faster, bySpeed) };
  };
  const orElse = (one, other) => {
    const byBudget = one.fastest ? one : other, byDeadline = one.cheapest ? one : other;
    return {
      fastest: byBudget.fastest, forLess: byBudget.forLess,
      cheapest: byDeadline.cheapest, faster: byDeadline.faster,
    };
  };

  const breakEven = (own, rent, lifeDays) => {
    const saved = rent.aRun - own.aRun;
    if (saved <= 0) return null;
    const runs = Math.ceil(own.upfront / saved);
    return { runs, utilisation: runs * own.days.value / lifeDays };
  };

  const ranks = (machines) => {
    const sound = machines.filter((machine) => !machine.marked).length;
    let leader = 0;
    return machines.map((machine, i) => {
      if (i === sound || differs(machine.days, machines[leader].days)) leader = i;
      return leader + 1;
    });
  };

  // A wish is {budget, deadline, runs}, without a limit where it is null.
  const appraise = (given, wish, lifeDays, utilisation) => {
    const order = [...given.keys()].sort(by((i) => [given[i].marked, given[i].days.value, given[i].label]));
    const machines = order.map((i) => given[i]);
    const options = machines.map((machine) => optionsOf(machine, utilisation));
    const every = options.flat();
    const sound = options.filter((_, i) => !machines[i].marked).flat();
    const usedDays = lifeDays * utilisation;
    const answer = orElse(decide(sound, wish, usedDays), decide(every, wish, usedDays));
    const answers = [
      ["fastest in budget", answer.fastest],
      ["as fast within the interval, for less", answer.forLess],
      ["cheapest by the deadline", answer.cheapest],
      ["as cheap within the interval, and faster", answer.faster],
    ];
    const cheapestRent = (some) => least(some.filter((o) => o.kind === "rent"), (o) => [o.aRun]);
    const rent = cheapestRent(sound) ?? cheapestRent(every);
    const bought = (some) => some.filter((o) => o.kind === "buy");
    const best = new Set([
      ...frontier(bought(sound).length ? bought(sound) : bought(every), (o) => o.upfront),
      ...frontier(sound.length ? sound : every, (o) => runCost(o, lifeDays, utilisation)),
    ]);
    const offerOf = (o) => {
      const even = rent && breakEven(o, rent, lifeDays);
      return {
        kind: o.kind,
        run_cost: runCost(o, lifeDays, utilisation),
        spend: spend(o, wish.runs),
        in_budget: wish.budget === null ? null : spend(o, wish.runs) <= wish.budget,
        outlived: !livesFor(o, wish.runs, usedDays),
        on_frontier: best.has(o),
        break_even: even,
        rent_always_less: o.kind === "buy" && rent !== null && even === null,
        marks: answers.filter(([, chosen]) => chosen === o).map(([words]) => words),
      };
    };
    const place = ranks(machines);
    const appraised = machines.map((machine, i) => ({
      rank: place[i],
      in_time: wish.deadline === null ? null : meets(machine.days, wish.deadline),
      offers: options[i].map(offerOf),
    }));
    const inTime = wish.budget === null || !every.length
      ? appraised.some((one) => one.in_time === "yes") : answer.cheapest !== null;
    return {
      order,
      machines: appraised,
      nothing_in_budget: wish.budget !== null && every.length > 0 && answer.fastest === null,
      nothing_in_time: wish.deadline !== null && machines.length > 0 && !inTime,
    };
  };

  // What a user writes. Returns {value} or {mistake}.
  const positive = (text) => {
    const plain = text.replaceAll(",", "").trim();
    const value = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(plain) ? Number(plain) : NaN;
    if (!Number.isFinite(value)) return { mistake: `${text} is not a number` };
    return value > 0 ? { value } : { mistake: `${text} is not more than 0` };
  };
  const divided = (found, by) => ("value" in found ? { value: found.value / by } : found);
  const parse = {
    positive,
    days: (text) => {
      if (text.endsWith("h")) return divided(positive(text.slice(0, -1)), 24);
      if (!text.endsWith("w")) return positive(text.replace(/d$/, ""));
      const weeks = positive(text.slice(0, -1));
      return "value" in weeks ? { value: 7 * weeks.value } : weeks;
    },
    percent: (text) => {
      const found = positive(text.replace(/%+$/, ""));
      return found.value > 100 ? { mistake: `${text} is more than 100%` } : divided(found, 100);
    },
    count: (text) => (/^\d+$/.test(text) && Number(text) >= 1 && Number.isSafeInteger(Number(text))
      ? { value: Number(text) } : { mistake: `${text} is not a whole number of at least 1` }),
  };

  // Numbers as text. Python rounds the exact value of a double half to even; toFixed rounds it half up.
  const scaled = (value, places) => {
    const whole = value < 1e21 ? BigInt(value.toFixed(100).replace(".", "")) : BigInt(value) * 10n ** 100n;
    const unit = 10n ** BigInt(100 - places);
    const rest = 2n * (whole % unit), below = whole / unit;
    return rest > unit || (rest === unit && below % 2n === 1n) ? below + 1n : below;
  };
  const grouped = (text) => text.replace(/\B(?=(\d{3})+(?!\d))/g, ",");
  const fixed = (value, places) => {
    const digits = String(scaled(value, places)).padStart(places + 1, "0");
    return places ? `${digits.slice(0, -places)}.${digits.slice(-places)}` : digits;
  };
  const groupedFixed = (value, places) => {
    const [whole, ...rest] = fixed(value, places).split(".");
    return [grouped(whole), ...rest].join(".");
  };
  const magnitude = (value, digits = 7) => Number(value.toExponential(digits - 1).split("e")[1]);
  const figures = (value, digits = 3) => {
    if (value === 0) return "0";
    const exponent = magnitude(value, digits), places = digits - 1 - exponent;
    if (exponent >= -4 && exponent < digits) {
      const text = fixed(value, places);
      return exponent === digits - 1 ? grouped(text) : text.replace(/\.?0+$/, "");
    }
    const rounded = Number(`${scaled(value, places)}e${-places}`);
    if (value >= 1) return groupedFixed(rounded, 0);
    return fixed(rounded, digits - 1 - magnitude(value)).replace(/0+$/, "");
  };
  const intervalText = ({ value, half_width: half }) => {
    if (half <= 0) return `${figures(value, 4)} ±0`;
    const places = Math.max(0, 1 - magnitude(half));
    return `${groupedFixed(value, places)} ±${fixed(half, places)}`;
  };
  const moneyText = (amount, sign) => {
    if (amount >= 99.995) return sign + groupedFixed(amount, 0);
    return sign + (amount >= 0.01 || amount === 0 ? fixed(amount, 2) : figures(amount, 2));
  };
  const wholeText = (number) => groupedFixed(number, 0);
  const countText = (number, word) => `${wholeText(number)} ${word}${number === 1 ? "" : "s"}`;
  const percentText = (share) => `${figures(100 * share, 6)}%`;

  return { appraise, parse, fixed, figures, intervalText, moneyText, wholeText, countText, percentText };
})();
