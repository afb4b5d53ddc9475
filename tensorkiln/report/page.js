// Zoom by wheel or buttons, move by dragging; a link to a kernel opens it.
for (const view of document.querySelectorAll(".view")) {
  const svg = view.querySelector("svg");
  const first = svg.getAttribute("viewBox").split(" ").map(Number);
  const whole = [0, 0, Number(svg.dataset.width), Number(svg.dataset.height)];
  let box = first.slice();
  const show = () => svg.setAttribute("viewBox", box.join(" "));
  const point = (event) => {
    const p = new DOMPoint(event.clientX, event.clientY);
    return p.matrixTransform(svg.getScreenCTM().inverse());
  };
  const zoom = (factor, at) => {
    box = [at.x - (at.x - box[0]) * factor, at.y - (at.y - box[1]) * factor, box[2] * factor, box[3] * factor];
    show();
  };
  const middle = () => ({ x: box[0] + box[2] / 2, y: box[1] + box[3] / 2 });
  svg.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.15 : 1 / 1.15, point(event));
  }, { passive: false });
  let from = null, moved = false;
  svg.addEventListener("pointerdown", (event) => { from = point(event); moved = false; });
  svg.addEventListener("pointermove", (event) => {
    if (!from || !event.buttons) { from = null; return; }
    const to = point(event);
    if (Math.abs(to.x - from.x) + Math.abs(to.y - from.y) > 2) moved = true;
    box[0] += from.x - to.x;
    box[1] += from.y - to.y;
    show();
  });
  svg.addEventListener("pointerup", () => { from = null; });
  svg.addEventListener("click", (event) => { if (moved) event.preventDefault(); }, true);
  const act = {
    "in": () => zoom(1 / 1.4, middle()),
    "out": () => zoom(1.4, middle()),
    "top": () => { box = first.slice(); show(); },
    "whole": () => { box = whole.slice(); show(); },
  };
  for (const button of view.querySelectorAll("button")) button.addEventListener("click", act[button.name]);
}
function openTarget() {
  const found = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (found && found.tagName === "DETAILS") { found.open = true; found.scrollIntoView(); }
}
addEventListener("hashchange", openTarget);
openTarget();
