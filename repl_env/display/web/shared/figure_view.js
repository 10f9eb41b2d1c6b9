// A figure of a session as a picture: PNG in base64, shown from a blob so that no text of a recording
// becomes an address.

import { html, useEffect, useState } from "../vendor/preact-htm.module.js";

const SIGNATURE = [0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a];

function pngBlob(base64) {
  let binary;
  try {
    binary = atob(base64);
  } catch {
    return null;
  }
  const data = Uint8Array.from(binary, (sign) => sign.charCodeAt(0));
  return SIGNATURE.every((byte, index) => data[index] === byte) ? new Blob([data], { type: "image/png" }) : null;
}

// Width and height from the header of the file, so that the page keeps room for the picture.
function pngSize(base64) {
  const head = Uint8Array.from(atob(base64.slice(0, 44)), (sign) => sign.charCodeAt(0));
  const view = new DataView(head.buffer);
  return [view.getUint32(16), view.getUint32(20)];
}

export function FigureView({ png, name = "figure" }) {
  const [shown, setShown] = useState(null);
  useEffect(() => {
    const blob = typeof png === "string" ? pngBlob(png) : null;
    if (blob === null) {
      setShown({ broken: true });
      return undefined;
    }
    const [width, height] = pngSize(png);
    const url = URL.createObjectURL(blob);
    setShown({ url, width, height });
    return () => URL.revokeObjectURL(url);
  }, [png]);
  if (shown === null) return html`<figure class="plot"></figure>`;
  if (shown.broken) return html`<p class="muted">${name}: not a PNG picture</p>`;
  return html`<figure class="plot">
    <img src=${shown.url} width=${shown.width} height=${shown.height} alt=${name} />
    <figcaption>${name} · ${shown.width} × ${shown.height} · <a href=${shown.url} download=${`${name}.png`}>Save</a></figcaption>
  </figure>`;
}
