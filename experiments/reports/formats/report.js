
const units = {
  ns: 1, us: 1e3, ms: 1e6, s: 1e9, B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12,
};
const keyOf = (cell) => {
  const text = cell.textContent.trim();
  const found = /^[<+]?\s*(-?[\d.,]+)[+-]?\s*(\S*)/.exec(text);
  return found ? parseFloat(found[1].replaceAll(",", "")) * (units[found[2]] || 1) : text;
};
const compare = (a, b) => {
  if (typeof a === typeof b) return a < b ? -1 : a > b ? 1 : 0;
  return typeof a === "number" ? -1 : 1;
};
const sort = (head) => {
  const turn = head.ariaSort === "ascending" ? -1 : 1;
  for (const each of head.parentNode.cells) each.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", turn > 0 ? "ascending" : "descending");
  const body = head.closest("table").tBodies[0];
  const keyed = [...body.rows].map((row) => [keyOf(row.cells[head.cellIndex]), row]);
  keyed.sort((a, b) => turn * compare(a[0], b[0])).forEach(([, row]) => body.append(row));
};
for (const head of document.querySelectorAll("thead th")) {
  head.tabIndex = 0;
  head.onclick = () => sort(head);
  head.onkeydown = (event) => event.key === "Enter" && sort(head);
}
const reveal = () => {
  const target = document.getElementById(location.hash.slice(1));
  if (target && target.tagName === "DETAILS") target.open = true;
};
addEventListener("hashchange", reveal);
reveal();
if (matchMedia("(max-width: 60rem)").matches) document.querySelector("nav details").open = false;
