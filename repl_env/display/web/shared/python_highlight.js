// Python source as a list of [class, text], for colours: "k" keyword, "s" string, "n" number,
// "c" comment, "d" defined name or decorator, "" all else. Joined, the texts are the source.

const KEYWORDS = new Set(("False None True and as assert async await break case class continue def del elif "
  + "else except finally for from global if import in is lambda match nonlocal not or pass raise return try "
  + "while with yield").split(" "));

const TOKEN = new RegExp([
  /(?<comment>#[^\n]*)/,
  /(?<string>(?:(?<![\p{L}\p{N}_])[rRbBuUfFtT]{1,2})?(?:"""(?:[^\\]|\\[^])*?(?:"""|\\?$)|'''(?:[^\\]|\\[^])*?(?:'''|\\?$)|"(?:[^"\\\n]|\\[^])*"?|'(?:[^'\\\n]|\\[^])*'?))/,
  /(?<number>\b(?:0[xXoObB][\da-fA-F_]+|\d[\d_]*(?:\.[\d_]*)?(?:[eE][+-]?\d+)?[jJ]?))/,
  /(?<decorator>(?<=^|\n)[ \t]*@[\w.]+)/,
  /(?<word>[\p{L}_][\p{L}\p{N}_]*)/,
].map((part) => part.source).join("|"), "gu");

export function highlightPython(source) {
  const pieces = [];
  let end = 0;
  let defines = false;
  const add = (kind, text) => {
    const last = pieces[pieces.length - 1];
    if (last !== undefined && last[0] === kind) last[1] += text;
    else if (text !== "") pieces.push([kind, text]);
  };
  for (const found of source.matchAll(TOKEN)) {
    const { comment, string, number, decorator, word } = found.groups;
    add("", source.slice(end, found.index));
    end = found.index + found[0].length;
    let kind = "";
    if (comment !== undefined) kind = "c";
    else if (string !== undefined) kind = "s";
    else if (number !== undefined) kind = "n";
    else if (decorator !== undefined) kind = "d";
    else if (KEYWORDS.has(word)) kind = "k";
    else if (defines) kind = "d";
    defines = word === "def" || word === "class";
    add(kind, found[0]);
  }
  add("", source.slice(end));
  return pieces;
}
