"use strict";
/* The data of the page, unpacked. Text is only ever written as text, never as HTML. */
const kv = (() => {
  const read = () => JSON.parse(document.getElementById("data").textContent);

  /** Numbers of 7 bits a byte, as base64; with `sum` each is the difference to the one before. */
  const unpack = (text, sum) => {
    const bytes = atob(text);
    const numbers = [];
    for (let i = 0, value = 0, scale = 1, last = 0; i < bytes.length; i++) {
      const byte = bytes.charCodeAt(i);
      value += (byte & 127) * scale;
      if (byte & 128) { scale *= 128; continue; }
      last = sum ? last + value : value;
      numbers.push(last);
      value = 0;
      scale = 1;
    }
    return numbers;
  };

  const element = (name, attributes, text) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const number = (value) => Math.round(value).toLocaleString("en-US");
  const share = (part, whole) => {
    const percent = whole ? (100 * part) / whole : 0;
    if (percent > 0 && percent < 0.1) return "<0.1%";
    if (percent >= 99.5 && percent < 100) return `${Math.min(percent, 99.9).toFixed(1)}%`;
    return `${percent < 9.95 ? percent.toFixed(1) : percent.toFixed(0)}%`;
  };

  /** Calls back when colors change: another color scheme, or a page that is printed. */
  const recolored = (callback) => {
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", callback);
    addEventListener("beforeprint", () => {
      document.documentElement.classList.add("print");
      callback();
    });
    addEventListener("afterprint", () => {
      document.documentElement.classList.remove("print");
      callback();
    });
  };

  return { data: read(), unpack, element, color, number, share, recolored };
})();

for (const button of document.querySelectorAll("button[data-copy]")) {
  button.addEventListener("click", () => {
    const source = document.getElementById(button.dataset.copy);
    const done = () => { button.textContent = "Copied"; };
    const select = () => {
      getSelection().selectAllChildren(source);
      button.textContent = "Selected";
    };
    if (navigator.clipboard) navigator.clipboard.writeText(source.textContent).then(done, select);
    else select();
  });
}
