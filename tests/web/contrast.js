// The texts of a page whose contrast with their background is below 4.5 to 1 (WCAG AA).
() => {
  const channels = (colour) => {
    const numbers = colour.match(/[\d.]+/g).map(Number);
    return numbers.length < 4 ? [...numbers, 1] : numbers;
  };
  const luminance = (colour) => {
    const [red, green, blue] = colour.slice(0, 3).map((value) => {
      const part = value / 255;
      return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const background = (element) => {
    for (let node = element; node !== null; node = node.parentElement) {
      const colour = channels(getComputedStyle(node).backgroundColor);
      if (colour[3] > 0.99) return colour;
    }
    throw new Error("the page has no background");
  };
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode.data.trim();
    const element = texts.currentNode.parentElement;
    const colour = channels(getComputedStyle(element).color);
    if (text === "" || colour[3] === 0 || element.closest("button:disabled, .visually-hidden, noscript")) continue;
    const [darker, lighter] = [luminance(colour), luminance(background(element))].sort((one, other) => one - other);
    const contrast = (lighter + 0.05) / (darker + 0.05);
    if (contrast < 4.5) found.push(`${text.slice(0, 40)}: ${contrast.toFixed(2)}`);
  }
  return found;
}
