// Wheel, drag, touch and keys. What they mean is the map's: these say only where and how far.

const WHEEL = 0.0016; // of a zoom step in a wheel's pixel
const LINE_PX = 16;
const CLICK_PX = 4;

export function heardPointers(canvas, map) {
  const down = new Map();
  let moved = 0;
  let pinch = null;

  canvas.addEventListener("wheel", (event) => {
    if (!map.view) return;
    const pixels = (event.deltaY || event.deltaX) * (event.deltaMode === 1 ? LINE_PX : 1);
    if (pixels > 0 && map.view.isWhole) return; // nothing further out: the page scrolls on
    event.preventDefault();
    const factor = Math.exp(-pixels * WHEEL);
    const [x, y] = place(canvas, event);
    map.zoomBy(event.altKey ? 1 : factor, event.shiftKey ? 1 : factor, x, y);
  }, { passive: false });

  canvas.addEventListener("pointerdown", (event) => {
    down.set(event.pointerId, place(canvas, event));
    moved = 0;
    map.drag = true;
    pinch = down.size === 2 ? spread(down) : null;
    if (event.pointerType === "mouse" || !map.view?.isWhole) canvas.setPointerCapture(event.pointerId);
  });

  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = place(canvas, event);
    const before = down.get(event.pointerId);
    if (!before) {
      map.hover(x, y);
      return;
    }
    down.set(event.pointerId, [x, y]);
    moved += Math.abs(x - before[0]) + Math.abs(y - before[1]);
    if (down.size === 2 && pinch) {
      const now = spread(down);
      map.change((view) => {
        view.pan(now.x - pinch.x, now.y - pinch.y);
        view.zoom(now.x, now.y, now.apart / pinch.apart, now.apart / pinch.apart);
      });
      pinch = now;
    } else if (down.size === 1 && moved > CLICK_PX) map.change((view) => view.pan(x - before[0], y - before[1]));
  });

  const up = (event) => {
    const isClick = down.delete(event.pointerId) && moved <= CLICK_PX && event.type === "pointerup";
    pinch = null;
    map.drag = down.size > 0;
    if (!isClick) return;
    map.hover(...place(canvas, event));
    map.focus = map.pointed;
    map.open(map.pointed);
  };
  canvas.addEventListener("pointerup", up);
  canvas.addEventListener("pointercancel", up);
  canvas.addEventListener("pointerleave", () => map.hover(-1, -1));
}

export function heardKeys(canvas, map) {
  canvas.addEventListener("focus", () => {
    map.isFocused = canvas.matches(":focus-visible");
    map.drawOver();
  });
  canvas.addEventListener("blur", () => {
    map.isFocused = false;
    map.drawOver();
  });
  canvas.addEventListener("keydown", (event) => {
    const act = map.tiles && !event.ctrlKey && !event.metaKey && !event.altKey && keys(map, event.shiftKey)[event.key];
    if (!act) return;
    event.preventDefault();
    map.isFocused = true;
    act();
  });
}

function keys(map, isShifted) {
  const far = isShifted ? 10 : 1;
  const bins = Math.ceil(map.view.height / 4);
  return {
    ArrowLeft: () => map.step(-far, 0),
    ArrowRight: () => map.step(far, 0),
    ArrowUp: () => map.step(0, -far),
    ArrowDown: () => map.step(0, far),
    PageUp: () => map.step(0, -bins),
    PageDown: () => map.step(0, bins),
    Home: () => map.step(-map.iterations.length, 0),
    End: () => map.step(map.iterations.length, 0),
    "+": () => map.zoomBy(1.6),
    "=": () => map.zoomBy(1.6),
    "-": () => map.zoomBy(1 / 1.6),
    0: () => map.reset(),
    Enter: () => map.open(map.focus),
    " ": () => map.open(map.focus),
    n: () => nextStrangest(map, 1),
    p: () => nextStrangest(map, -1),
    Escape: () => map.hover(-1, -1),
  };
}

function nextStrangest(map, direction) {
  const cells = map.strangest?.cells || [];
  if (!cells.length) return;
  map.strangestAt = ((map.strangestAt ?? (direction > 0 ? -1 : 0)) + direction + cells.length) % cells.length;
  map.goTo(cells[map.strangestAt].column, cells[map.strangestAt].row);
}

function place(canvas, event) {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

function spread(down) {
  const [[ax, ay], [bx, by]] = [...down.values()];
  return { x: (ax + bx) / 2, y: (ay + by) / 2, apart: Math.max(10, Math.hypot(ax - bx, ay - by)) };
}
