// Lays out a graph from left to right: ranks, order within ranks, then heights.

const GAP_X = 60, GAP_Y = 18, BEND = 8;

/** `nodes`: [{id, width, height, least}], `edges`: [{from, to}]. Returns places by id, paths of the edges, and the size. */
export function layout(nodes, edges) {
  const by = new Map(nodes.map((node) => [node.id, { ...node, up: [], down: [], rank: 0 }]));
  const lines = edges.filter((edge) => by.has(edge.from) && by.has(edge.to));
  for (const { from, to } of lines) {
    by.get(from).down.push(to);
    by.get(to).up.push(from);
  }
  const done = new Set();
  const visit = (id, above) => {
    const node = by.get(id);
    if (done.has(id) || above.has(id)) return node.rank;
    above.add(id);
    node.rank = Math.max(node.least ?? 0, ...node.up.map((upper) => visit(upper, above) + 1));
    above.delete(id);
    done.add(id);
    return node.rank;
  };
  for (const id of by.keys()) visit(id, new Set());
  for (const node of by.values()) if (node.last && !node.up.length) node.rank = Math.max(node.rank, 1);
  // A source stands directly before its reader.
  for (const node of by.values()) {
    if (!node.up.length && node.down.length) node.rank = Math.max(0, Math.min(...node.down.map((id) => by.get(id).rank)) - 1);
  }
  // A long edge passes between the nodes of the ranks that it crosses.
  const chains = lines.map(({ from, to }, number) => {
    const chain = [from];
    for (let rank = by.get(from).rank + 1; rank < by.get(to).rank; rank++) {
      const id = `\u0000${number}:${rank}`;
      by.set(id, { id, width: 0, height: BEND, rank, up: [chain.at(-1)], down: [] });
      chain.push(id);
    }
    chain.push(to);
    return chain;
  });
  for (const node of by.values()) (node.up = []), (node.down = []);
  for (const chain of chains) for (let i = 1; i < chain.length; i++) {
    by.get(chain[i - 1]).down.push(chain[i]);
    by.get(chain[i]).up.push(chain[i - 1]);
  }
  const ranks = [];
  for (const node of by.values()) (ranks[node.rank] ??= []).push(node);
  for (let r = 0; r < ranks.length; r++) ranks[r] ??= [];
  const settle = () => ranks.forEach((rank) => rank.forEach((node, place) => (node.place = place)));
  settle();
  for (let sweep = 0; sweep < 12; sweep++) {
    const side = sweep % 2 ? "down" : "up";
    for (const rank of sweep % 2 ? [...ranks].reverse() : ranks) {
      for (const node of rank) {
        const near = node[side].map((id) => by.get(id).place);
        node.weight = near.length ? near.reduce((a, b) => a + b, 0) / near.length : node.place;
      }
      rank.sort((a, b) => a.weight - b.weight || a.place - b.place);
      rank.forEach((node, place) => (node.place = place));
    }
  }
  settle();
  for (const rank of ranks) {
    let y = 0;
    for (const node of rank) {
      node.y = y;
      y += node.height + GAP_Y;
    }
  }
  const middle = (node) => node.y + node.height / 2;
  for (let round = 0; round < 24; round++) {
    for (const rank of round % 2 ? [...ranks].reverse() : ranks) {
      for (const node of rank) {
        const near = [...node.up, ...node.down];
        if (near.length) node.want = near.reduce((sum, id) => sum + middle(by.get(id)), 0) / near.length - node.height / 2;
        else node.want = node.y;
      }
      spread(rank);
    }
  }
  const low = Math.min(...[...by.values()].map((node) => node.y));
  let x = 0;
  for (const rank of ranks) {
    const width = Math.max(0, ...rank.map((node) => node.width));
    for (const node of rank) {
      node.x = x;
      node.y -= low;
      node.column = width;
    }
    x += width + GAP_X;
  }
  const paths = chains.map((chain, number) => {
    const points = [];
    chain.forEach((id, place) => {
      const node = by.get(id), y = middle(node);
      if (place > 0) points.push([node.x, y]);
      if (place < chain.length - 1) points.push([node.x + (node.width || node.column), y]);
    });
    return { ...lines[number], points, d: curve(points) };
  });
  const height = Math.max(0, ...[...by.values()].map((node) => node.y + node.height));
  return { places: by, paths, width: Math.max(0, x - GAP_X), height };
}

/** Moves the nodes of a rank towards where they want to be, without overlap: groups that touch share the wish. */
function spread(rank) {
  const groups = [];
  for (const node of rank) {
    let group = { nodes: [node], height: node.height, wish: node.want, y: node.want };
    while (groups.length && groups.at(-1).y + groups.at(-1).height + GAP_Y > group.y) {
      const before = groups.pop();
      const shift = before.height + GAP_Y;
      const many = before.nodes.length + group.nodes.length;
      const wish = (before.wish * before.nodes.length + (group.wish - shift) * group.nodes.length) / many;
      group = { nodes: [...before.nodes, ...group.nodes], height: before.height + GAP_Y + group.height, wish, y: wish };
    }
    groups.push(group);
  }
  for (const group of groups) {
    let y = group.y;
    for (const node of group.nodes) {
      node.y = y;
      y += node.height + GAP_Y;
    }
  }
}

function curve(points) {
  let d = `M${points[0][0]} ${points[0][1].toFixed(1)}`;
  for (let i = 1; i < points.length; i++) {
    const [x0, y0] = points[i - 1], [x1, y1] = points[i];
    if (i % 2 === 0) d += `L${x1} ${y1.toFixed(1)}`;
    else d += `C${(x0 + x1) / 2} ${y0.toFixed(1)} ${(x0 + x1) / 2} ${y1.toFixed(1)} ${x1} ${y1.toFixed(1)}`;
  }
  return d;
}
