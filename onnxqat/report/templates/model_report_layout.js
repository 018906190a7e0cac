// Layout of the graph: layers by depth, few crossings, wrapped into columns that fill the view.

const BOX = { width: 148, height: 26, gapX: 18, gapY: 22, band: 56 };
const LONGEST_SPAN = 10; // layers over which an edge is routed between the nodes; longer ones are drawn behind them
const SWEEPS = 6;

/**
 * Place boxes: {count, links: [[from, to]]}, whose links point to later boxes but for cycles of collapsed blocks.
 * Gives x, y of centres, layer of each, and size of the whole.
 */
function layOut(total, links, aspect) {
  const forward = links.filter(([from, to]) => from < to);
  const depth = new Int32Array(total);
  const into = Array.from({ length: total }, () => []);
  for (const link of forward) into[link[1]].push(link[0]);
  for (let to = 0; to < total; to++) for (const from of into[to]) depth[to] = Math.max(depth[to], depth[from] + 1);
  pullSources(total, forward, into, depth);
  const layers = [];
  const at = (d) => (layers[d] ||= []);
  for (let i = 0; i < total; i++) at(depth[i]).push(i);
  const places = total + bends(forward, depth);
  const up = Array.from({ length: places }, () => []), down = Array.from({ length: places }, () => []);
  routed(total, forward, depth, at, up, down);
  for (let d = 0; d < layers.length; d++) layers[d] ||= [];
  order(layers, up, down, places);
  const x = spread(layers, up, down, places, total);
  return wrap(total, layers, depth, x, aspect);
}

/** Move boxes without producers next to their first consumer, so that their lines are short. */
function pullSources(total, forward, into, depth) {
  const first = new Int32Array(total).fill(2 ** 30);
  for (const [from, to] of forward) first[from] = Math.min(first[from], depth[to]);
  for (let i = 0; i < total; i++) if (!into[i].length && first[i] < 2 ** 30) depth[i] = Math.max(0, first[i] - 1);
}

function bends(forward, depth) {
  let found = 0;
  for (const [from, to] of forward) {
    const span = depth[to] - depth[from];
    if (span > 1 && span <= LONGEST_SPAN) found += span - 1;
  }
  return found;
}

function routed(total, forward, depth, at, up, down) {
  let next = total;
  const join = (a, b) => {
    down[a].push(b);
    up[b].push(a);
  };
  for (const [from, to] of forward) {
    const span = depth[to] - depth[from];
    if (span > LONGEST_SPAN) continue;
    let last = from;
    for (let d = depth[from] + 1; d < depth[to]; d++) {
      at(d).push(next);
      join(last, next);
      last = next++;
    }
    join(last, to);
  }
}

/** Order each layer by the mean place of its neighbours, downwards and upwards in turn (Sugiyama et al., 1981). */
function order(layers, up, down, places) {
  const place = new Float64Array(places);
  const note = (layer) => layer.forEach((i, k) => (place[i] = k - (layer.length - 1) / 2));
  layers.forEach(note);
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const near = sweep % 2 ? down : up;
    const rows = sweep % 2 ? [...layers].reverse() : layers;
    for (const layer of rows) {
      if (layer.length > 1) {
        const key = new Map(layer.map((i) => [i, near[i].length ? near[i].reduce((sum, j) => sum + place[j], 0) / near[i].length : place[i]]));
        layer.sort((a, b) => key.get(a) - key.get(b));
      }
      note(layer);
    }
  }
}

/** Give each box the mean x of its neighbours, and push apart what would overlap. */
function spread(layers, up, down, places, total) {
  const x = new Float64Array(places);
  const width = (i) => (i < total ? BOX.width : 16) + BOX.gapX;
  const separate = (layer, wanted) => {
    let edge = -Infinity, shift = 0;
    layer.forEach((i, k) => {
      const left = Math.max(wanted[k] - width(i) / 2, edge);
      x[i] = left + width(i) / 2;
      edge = left + width(i);
      shift += x[i] - wanted[k];
    });
    layer.forEach((i) => (x[i] -= shift / layer.length));
  };
  layers.forEach((layer) => separate(layer, layer.map(() => 0)));
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const rows = sweep % 2 ? [...layers].reverse() : layers;
    for (const layer of rows) {
      separate(layer, layer.map((i) => {
        const near = sweep % 2 ? down[i] : up[i];
        const other = near.length ? near : sweep % 2 ? up[i] : down[i];
        return other.length ? other.reduce((sum, j) => sum + x[j], 0) / other.length : x[i];
      }));
    }
  }
  return x;
}

/** Cut the layers into columns side by side, as many as make the whole as wide as the view in proportion. */
function wrap(total, layers, depth, x, aspect) {
  const row = BOX.height + BOX.gapY;
  const ends = layers.map((layer) => {
    const own = layer.filter((i) => i < total);
    return own.length ? [Math.min(...own.map((i) => x[i])) - BOX.width / 2, Math.max(...own.map((i) => x[i])) + BOX.width / 2] : [0, 0];
  });
  const columnsOf = (many) => {
    const size = Math.max(1, Math.ceil(layers.length / many)), found = [];
    let offset = 0;
    for (let start = 0; start < layers.length; start += size) {
      const part = ends.slice(start, start + size);
      const left = Math.min(...part.map((end) => end[0])), right = Math.max(...part.map((end) => end[1]));
      found.push({ start, left, offset });
      offset += right - left + BOX.band;
    }
    return { found, size, width: offset - BOX.band, height: size * row };
  };
  let best = columnsOf(1), misfit = Infinity;
  for (let many = 1; many <= Math.min(layers.length, 80); many++) {
    const tried = columnsOf(many), off = Math.abs(Math.log(tried.width / tried.height / aspect));
    if (off < misfit) [best, misfit] = [tried, off];
  }
  const placed = { x: new Float64Array(total), y: new Float64Array(total), column: new Int32Array(total), depth, width: best.width, height: best.height };
  for (let i = 0; i < total; i++) {
    const column = Math.min(Math.floor(depth[i] / best.size), best.found.length - 1), { start, left, offset } = best.found[column];
    placed.x[i] = x[i] - left + offset;
    placed.y[i] = (depth[i] - start) * row + row / 2;
    placed.column[i] = column;
  }
  return placed;
}
