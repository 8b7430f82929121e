// Looks at the page as it is laid out, and writes what is wrong with it into a <pre> that --dump-dom prints.
(() => {
  const problems = [];
  const name = (e) => `${e.tagName.toLowerCase()}${e.id ? "#" + e.id : ""} "${(e.textContent || "").trim().slice(0, 40)}"`;
  const isSeen = (e) => e.getClientRects().length > 0 && getComputedStyle(e).visibility !== "hidden";
  const meet = (a, b) => {
    const [r, s] = [a.getBoundingClientRect(), b.getBoundingClientRect()];
    return r.left < s.right - 0.5 && s.left < r.right - 0.5 && r.top < s.bottom - 0.5 && s.top < r.bottom - 0.5;
  };
  const noOverlap = (elements, what) => {
    const seen = [...elements].filter(isSeen);
    seen.forEach((a, i) => seen.slice(i + 1).forEach((b) => meet(a, b) && problems.push(`${what}: ${name(a)} and ${name(b)} overlap`)));
  };

  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) problems.push(`the page is ${document.documentElement.scrollWidth} wide, the window ${width}`);
  for (const e of document.querySelectorAll("main *")) {
    const isInside = e.closest(".scroll table") || e.closest("svg");
    if (!isInside && isSeen(e) && e.getBoundingClientRect().right > width + 1) problems.push(`${name(e)} leaves the window`);
  }

  noOverlap(document.querySelectorAll("main > *"), "blocks");
  noOverlap(document.querySelectorAll(".tiles > *"), "tiles");
  for (const figure of document.querySelectorAll("figure")) {
    noOverlap(figure.querySelectorAll(".x span, .x em"), figure.id + " x axis");
    noOverlap(figure.querySelectorAll(".y span"), figure.id + " y axis");
    noOverlap([...figure.querySelectorAll("figcaption, .plot > *, .keys")], figure.id);
    noOverlap(figure.querySelectorAll(".keys li"), figure.id + " legend");
    const svg = figure.querySelector("svg").getBoundingClientRect();
    if (svg.width < 100 || svg.height < 20) problems.push(`${figure.id} is ${svg.width} x ${svg.height}`);
    const drawn = [...figure.querySelectorAll("svg path:not(.gridline)")].filter((p) => p.getTotalLength() > 0);
    if (!drawn.length) problems.push(`${figure.id} is empty`);
    for (const path of drawn) {
      const style = getComputedStyle(path);
      const isVisible = [style.fill, style.stroke].some((c) => c !== "none" && c !== "rgba(0, 0, 0, 0)");
      if (!isVisible || (style.fill === "rgb(0, 0, 0)" && style.stroke === "none")) problems.push(`${figure.id}: ${path.getAttribute("class")} has no colour`);
    }
  }

  const parse = (c) => (c.match(/[\d.]+/g) || []).map(Number);
  const light = (c) => {
    const [r, g, b] = parse(c).map((v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor;
      if (c && (parse(c)[3] ?? 1) > 0) return c;
    }
    return "rgb(255, 255, 255)";
  };
  let lowest = 99;
  for (const e of document.querySelectorAll("main *")) {
    const hasText = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!hasText || !isSeen(e) || e.closest("svg")) continue;
    const [a, b] = [light(getComputedStyle(e).color), light(ground(e))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    lowest = Math.min(lowest, contrast);
    if (contrast < 4.5) problems.push(`${name(e)} has a contrast of ${contrast.toFixed(2)}`);
  }

  const found = { width, lowest, problems, charts: [...document.querySelectorAll("figure")].map((f) => f.id), page: getComputedStyle(document.body).backgroundColor };
  const result = document.createElement("pre");
  result.id = "result";
  result.textContent = JSON.stringify(found);
  document.body.append(result);
})();
