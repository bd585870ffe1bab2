"""HTML as the report needs it: escaped text, tables, figures and downloads on one page that asks nobody for anything.

Knows how a page looks and what keeps it safe (its Content-Security-Policy lets nothing be loaded and nothing run);
knows nothing of runs. Functions take text and return markup; what is markup already is a `Markup`.
"""

import base64
import html
import re
from collections.abc import Iterable, Sequence

POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


class Markup(str):
    """Text that is HTML already, and is not escaped again."""

    __slots__ = ()


def text(content: object) -> Markup:
    """Anything as markup: what is not markup yet is escaped."""
    return content if isinstance(content, Markup) else Markup(html.escape(str(content), quote=True))


def element(name: str, *content: object, **attributes: object) -> Markup:
    """An element with that content; an attribute's trailing underscore is left out, as in class_."""
    given = "".join(f' {key.rstrip("_")}="{text(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{given}>{''.join(map(text, content))}</{name}>")


def joined(parts: Iterable[object]) -> Markup:
    """Several pieces, one after the other."""
    return Markup("".join(map(text, parts)))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, words: int) -> Markup:
    """A table whose first `words` columns are words and whose others are numbers; it scrolls where it is too wide."""
    head = element("tr", *(element("th", name, scope="col", class_=_kind(i, words)) for i, name in enumerate(columns)))
    body = (element("tr", *(element("td", cell, class_=_kind(i, words)) for i, cell in enumerate(row))) for row in rows)
    return element("div", element("table", element("thead", head), element("tbody", *body)), class_="wide", tabindex=0)


def _kind(column: int, words: int) -> str:
    return "word" if column < words else "number"


def figure(svg: str, caption: str, notes: Markup, *, prefix: str) -> Markup:
    """An SVG drawn in the page; ids of elements get the prefix, as no two elements of a page may share one."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}-", body)
    width = re.search(r'width="([0-9.]+)pt"', body)
    natural = round(float(width[1]) * 4 / 3) if width else 900
    body = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r'\1 role="img"', body, count=1)
    drawing = element("div", Markup(body), class_="drawing", tabindex=0, style=f"--natural: {natural}px")
    return element("figure", drawing, element("figcaption", caption, " ", notes))


def download(name: str, content: bytes, kind: str, words: object) -> Markup:
    """A link that saves these bytes as a file of that name."""
    data = base64.b64encode(content).decode("ascii")
    return element("a", words, download=name, href=f"data:{kind};base64,{data}")


def page(title: str, body: Iterable[object]) -> str:
    """The whole page."""
    head = joined(
        [
            Markup('<meta charset="utf-8">'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
            Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Markup('<link rel="icon" href="data:,">'),  # else a browser asks the server, if there is one, for an icon
            element("title", title),
            element("style", Markup(_STYLE)),
        ]
    )
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>{element("main", *body)}</body></html>\n'


_STYLE = """
:root { color-scheme: light; --ink: #222; --soft: #5f6368; --line: #dadce0; --paper: #fff; --shade: #f5f6f7; }
* { box-sizing: border-box; }
body { margin: 0; color: var(--ink); background: var(--paper); font: 16px/1.5 system-ui, "DejaVu Sans", Verdana,
  sans-serif; overflow-wrap: anywhere; }
main { max-width: 1200px; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .6rem; padding-top: .8rem; border-top: 1px solid var(--line); }
p { margin: .4rem 0; max-width: 75ch; }
a { color: #0b57a4; }
.soft, figcaption { color: var(--soft); font-size: .9rem; }
.warning { border-left: 4px solid #b5472f; background: #fbeeeb; padding: .6rem .8rem; max-width: none; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .6rem; margin: 1rem 0; }
.facts > div { background: var(--shade); border-radius: 6px; padding: .6rem .8rem; }
.facts b { display: block; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.facts span { color: var(--soft); font-size: .82rem; }
.wide, .drawing { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .7rem; border-bottom: 1px solid var(--line); text-align: left; white-space: nowrap; }
th { color: var(--soft); font-weight: 600; }
.number { text-align: right; }
figure { margin: 1.2rem 0 2rem; }
.drawing svg { display: block; width: 100%; height: auto; min-width: min(var(--natural), 44rem);
  max-width: var(--natural); }
figcaption { margin-top: .3rem; }
pre { background: var(--shade); padding: .8rem; overflow-x: auto; font-size: .82rem; line-height: 1.4;
  border-radius: 6px; }
details { margin: .3rem 0; }
summary { cursor: pointer; }
dl { display: grid; grid-template-columns: minmax(6rem, max-content) 1fr; gap: .2rem 1rem; margin: .6rem 0; }
dt { color: var(--soft); }
dd { margin: 0; min-width: 0; }
ul { padding-left: 1.2rem; }
@media (max-width: 40rem) {
  main { padding: 1rem .8rem 3rem; }
  dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: .4rem; }
}
@media print { .drawing svg { min-width: 0; } }
"""
