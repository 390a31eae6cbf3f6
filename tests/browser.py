"""A browser without a window or a network: what it says about a page, and what the page looks like in it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium, chromium-browser or google-chrome on the PATH")

LOOK = """
const pages = %s, widths = [375, 768, 1200, 1440, 1600], schemes = ["light", "dark"], faults = [];
const scrolls = each =>
  each && (/auto|scroll|hidden/.test(getComputedStyle(each).overflowX) || scrolls(each.parentElement));
function brokenWord(page) {
  for (const cell of page.querySelectorAll("td, th")) {
    const walker = page.createTreeWalker(cell, NodeFilter.SHOW_TEXT), range = page.createRange();
    for (let node; (node = walker.nextNode()); )
      for (const word of node.data.matchAll(/[\\p{L}\\p{N}]+/gu)) {
        range.setStart(node, word.index), range.setEnd(node, word.index + word[0].length);
        if (new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1) return word[0];
      }
  }
}
async function look(name, width, scheme) {
  const frame = document.createElement("iframe");
  frame.style.cssText = `border: 0; height: 900px; width: ${width}px`;
  await new Promise(loaded => { frame.onload = loaded; frame.src = name; document.body.append(frame); });
  const page = frame.contentDocument, seen = frame.contentWindow.getComputedStyle(page.body);
  page.body.dataset.theme = scheme;
  await page.fonts.ready;
  const say = what => faults.push(`${name}, ${width} px, ${scheme}: ${what}`);
  if (page.documentElement.scrollWidth > width) say(`${page.documentElement.scrollWidth} px wide`);
  const wide = [...page.querySelectorAll("article *")].find(
    each => each.getBoundingClientRect().right > width + 1 && !scrolls(each.parentElement));
  if (wide) say(`${wide.tagName} reaches beyond the page`);
  const word = brokenWord(page);
  if (word) say(`"${word}" is broken in a table`);
  if (seen.color === seen.backgroundColor) say("text as its background");
  const formulas = [...page.querySelectorAll("div.math")];
  if (formulas.some(each => each.scrollHeight > each.clientHeight + 1)) say("a formula is cropped");
  if (formulas.length && !page.fonts.check("16px 'STIX Two Math'")) say("no font for formulas");
  frame.remove();
}
(async () => {
  for (const name of pages) for (const width of widths) for (const scheme of schemes) await look(name, width, scheme);
  document.body.textContent = `looked at ${pages.length} pages: ${faults.join("; ")}.`;
})();
"""
"""Looks at pages in windows of five widths and in both colour schemes, and writes down what is wrong with them."""


def opened(page: Path, profile: Path, query: str = "") -> tuple[list[str], str]:
    """Return what a browser without a network has to say about a page, and the page as it has it then."""
    done = subprocess.run(
        [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0"]
        + [f"--user-data-dir={profile}", "--host-resolver-rules=MAP * ~NOTFOUND", "--window-size=1700,1000"]
        + ["--allow-file-access-from-files", "--virtual-time-budget=300000", "--dump-dom", page.as_uri() + query],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    return [line for line in done.stderr.splitlines() if "CONSOLE" in line], done.stdout


def looked_at(folder: Path, names: list[str], profile: Path) -> str:
    """Return what is wrong with pages of a folder, in windows of several widths."""
    page = folder / "looked_at.html"
    page.write_text(f"<!doctype html><body><script>{LOOK % json.dumps(names)}</script></body>", encoding="utf-8")
    said, text = opened(page, profile)
    page.unlink()
    assert not said
    return re.sub("<[^>]*>", "", text).strip()
