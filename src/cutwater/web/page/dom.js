// Builds elements, and changes those on the screen into new ones without losing focus. Text is only ever set as text.

const SVG = "http://www.w3.org/2000/svg";
const HANDLERS = ["onclick", "onsubmit", "onkeydown", "onchange", "oninput", "onclose"];

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (HANDLERS.includes(name)) element[name] = value;
    else if (name === "style") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false || child === "") continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

export const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
export const s = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

/** Shows `wanted` (an element or a list of them) as the only content of `place`. */
export function show(place, ...wanted) {
  const target = place.cloneNode(false);
  fill(target, {}, wanted);
  changeChildren(place, target);
}

function change(old, wanted) {
  if (old.nodeType !== wanted.nodeType || old.nodeName !== wanted.nodeName || keyOf(old) !== keyOf(wanted)) {
    old.replaceWith(wanted);
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== wanted.data) old.data = wanted.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (!wanted.hasAttribute(name) && name !== "style" && !(name === "open" && old.nodeName === "DETAILS")) old.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (name !== "style" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (old.style.cssText !== wanted.style.cssText) old.style.cssText = wanted.style.cssText;
  for (const name of HANDLERS) old[name] = wanted[name];
  changeChildren(old, wanted);
}

function changeChildren(old, wanted) {
  const children = [...wanted.childNodes];
  children.forEach((child, place) => {
    const present = old.childNodes[place];
    if (present) change(present, child);
    else old.append(child);
  });
  while (old.childNodes.length > children.length) old.lastChild.remove();
}

const keyOf = (node) => (node.getAttribute ? node.getAttribute("data-key") : null);

let announced = "";
/** Tells people who hear the page. */
export function announce(text) {
  if (text === announced) return;
  announced = text;
  document.getElementById("announce").textContent = text;
}
