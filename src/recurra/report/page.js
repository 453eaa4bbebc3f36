// The value under the pointer, and a switch between light and dark. The page is whole without it.
"use strict";

const short = (v) => {
  const size = Math.abs(v);
  if (size >= 1e12 || (v && size < 1e-3)) return v.toExponential(3);
  if (size < 1e4) return String(+v.toPrecision(4));
  return String(Math.round(v)).replace(/\B(?=(\d{3})+$)/g, "\u202f");
};

for (const plot of document.querySelectorAll(".plot[data-points]")) {
  const points = plot.dataset.points.split(" ").map((p) => p.split(",").map(Number));
  const [left, right, low, high] = plot.dataset.box.split(" ").map(Number);
  const cursor = document.createElement("div");
  cursor.className = "cursor";
  const dot = cursor.appendChild(document.createElement("i"));
  const tip = cursor.appendChild(document.createElement("span"));
  plot.append(cursor);
  plot.addEventListener("pointermove", (event) => {
    const box = plot.getBoundingClientRect();
    const x = left + ((event.clientX - box.left) / box.width) * (right - left);
    let best = points[0];
    for (const p of points) if (Math.abs(p[0] - x) < Math.abs(best[0] - x)) best = p;
    const at = (best[0] - left) / (right - left);
    cursor.style.left = `${100 * at}%`;
    const [step, value, mean] = best;
    dot.style.bottom = `${(100 * ((mean ?? value) - low)) / (high - low)}%`;
    tip.textContent = short(value) + (mean === undefined ? "" : ` · mean ${short(mean)}`)
      + ` · step ${short(step)}`;
    cursor.classList.toggle("flip", at > 0.6);
    cursor.classList.add("on");
  });
  plot.addEventListener("pointerleave", () => cursor.classList.remove("on"));
}

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement.style;
  const dark = root.colorScheme
    ? root.colorScheme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.colorScheme = dark ? "light" : "dark";
});
