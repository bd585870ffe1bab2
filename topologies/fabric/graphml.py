"""Reading of GraphML: the nodes and edges of a file, each with its line and its data as text. Pure.

All of GraphML's structure is read (http://graphml.graphdrawing.org/specification.html), also where an attribute's type
does not fit its value: what a value means, and whether it is needed, is decided in `topologies.fabric.maps`. Labels of
yEd, which are elements of their own, become the attribute "label". Ports, styles and unknown elements are ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from xml.parsers import expat

from topologies.errors import format_value

MAX_DEPTH = 40  # nesting of elements; yEd nests them ten deep in a node, and nodes in groups
MAX_ELEMENTS = 1_000_000

_LABEL = "label"
_KNOWN = ("graph", "node", "edge", "hyperedge", "endpoint", "key", "data", "default")


class GraphMLError(ValueError):
    """Raised for text that is not GraphML; the message is one sentence without the file's name."""


@dataclass(frozen=True, kw_only=True)
class Element:
    """A node, or an edge between the nodes `ends`, with the file's line and its data by attribute name."""

    line: int
    ends: tuple[str, ...] = ()
    is_directed: bool = False
    data: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Graph:
    """The first graph of a file: nodes by id, edges, and what was left out in words; nodes of groups are among them."""

    nodes: Mapping[str, Element]
    edges: tuple[Element, ...]
    left_out: tuple[str, ...]


def read(text: str) -> Graph:
    """Return the graph that this text, XML without a declaration of its encoding, is; raises GraphMLError.

    A document type is refused, because it can define entities that expand without bound.
    """
    reader = _Reader()
    try:
        reader.parser.Parse(text.encode(), True)
    except expat.ExpatError as error:
        raise GraphMLError(f"is not XML, line {error.lineno:,}: {expat.ErrorString(error.code)}") from None
    return reader.graph()


@dataclass(kw_only=True)
class _Key:
    """A declared attribute: its name, what it is for, and its default."""

    name: str
    of: str
    default: str | None = None


@dataclass(kw_only=True)
class _Found:
    """A node, edge or hyperedge as it is read, with its data by key."""

    kind: str
    line: int
    id: str = ""
    ends: list[str] = field(default_factory=list)
    is_directed: bool = False
    data: dict[str, str] = field(default_factory=dict)
    label: str = ""


class _Reader:
    """The handlers of an XML parser, with what they have found so far."""

    def __init__(self) -> None:
        self.parser = expat.ParserCreate("utf-8")
        self.parser.buffer_text = True
        self.parser.StartElementHandler, self.parser.EndElementHandler = self._begin, self._end
        self.parser.CharacterDataHandler, self.parser.StartDoctypeDeclHandler = self._text, self._doctype
        self._depth, self._elements, self._graphs = 0, 0, 0
        self._prefix = ""  # of the names of GraphML's elements
        self._open: list[tuple[str, int]] = []  # the elements of GraphML that are open, each with its depth
        self._directed: list[bool] = []
        self._owners: list[_Found] = []
        self._keys: dict[str, _Key] = {}
        self._key: _Key | None = None  # whose default is read
        self._data: str | None = None  # the key of the data that is read
        self._words: list[str] | None = None  # the text of the element that is read
        self._found: list[_Found] = []
        self._lines: dict[str, int] = {}  # of nodes by id

    def graph(self) -> Graph:
        """Return the graph that was read."""
        nodes = {one.id: self._element(one) for one in self._found if one.kind == "node"}
        edges = [one for one in self._found if one.kind != "node"]
        for edge in edges:
            for end in edge.ends:
                if end not in nodes:
                    raise GraphMLError(f"line {edge.line:,}: an edge ends at {format_value(end)}, which is not a node")
        pairs = tuple(self._element(edge) for edge in edges if len(edge.ends) == 2)
        left_out = []
        if more := len(edges) - len(pairs):
            left_out.append(f"{more:,} hyperedge{'s' * (more != 1)} of one or more than two nodes")
        if self._graphs > 1:
            left_out.append("all graphs of the file but the first")
        return Graph(nodes=nodes, edges=pairs, left_out=tuple(left_out))

    def _element(self, found: _Found) -> Element:
        of = "node" if found.kind == "node" else "edge"
        keys = {key: one for key, one in self._keys.items() if one.of in (of, "all")}
        data = {one.name: one.default for one in keys.values() if one.default is not None}
        data |= {keys[key].name if key in keys else key: text for key, text in found.data.items()}
        if found.label and not data.get(_LABEL):
            data[_LABEL] = found.label
        return Element(line=found.line, ends=tuple(found.ends), is_directed=found.is_directed, data=data)

    def _doctype(self, *_: object) -> None:
        raise GraphMLError("has a document type; allowed: XML without one, and so without entities")

    def _begin(self, name: str, attributes: dict[str, str]) -> None:
        self._depth, self._elements = self._depth + 1, self._elements + 1
        if self._depth > MAX_DEPTH:
            raise GraphMLError(f"has elements {self._depth} deep; allowed: {MAX_DEPTH}")
        if self._elements > MAX_ELEMENTS:
            raise GraphMLError(f"has more than {MAX_ELEMENTS:,} elements; allowed: {MAX_ELEMENTS:,}")
        prefix, _, local = name.rpartition(":")
        if self._depth == 1:
            self._prefix = prefix
            if local != "graphml":
                raise GraphMLError(f"is not GraphML: its root is {format_value(name)}; allowed: graphml")
        if self._data is not None:
            if local == "NodeLabel":
                self._words = []
        elif local in _KNOWN and prefix == self._prefix:
            self._begin_known(local, attributes)

    def _begin_known(self, local: str, attributes: dict[str, str]) -> None:
        line = self.parser.CurrentLineNumber
        if local == "graph":
            self._graphs += not self._directed
            self._directed.append(attributes.get("edgedefault") == "directed")
        elif local == "key":
            key = attributes.get("id", "")
            self._key = _Key(name=attributes.get("attr.name", key), of=attributes.get("for", "all"))
            self._keys[key] = self._key
        elif local in ("node", "edge", "hyperedge"):
            self._owners.append(self._begun(local, attributes, line))
        elif local == "endpoint" and self._owners:
            self._owners[-1].ends.append(attributes.get("node", ""))
        elif local == "data":
            self._data, self._words = attributes.get("key", ""), []
        elif local == "default" and self._key is not None:
            self._words = []
        self._open.append((local, self._depth))

    def _begun(self, kind: str, attributes: dict[str, str], line: int) -> _Found:
        if not self._directed:
            raise GraphMLError(f"line {line:,}: a {kind} outside a graph; allowed: within one")
        needed = {"node": ("id",), "edge": ("source", "target")}.get(kind, ())
        for name in needed:
            if name not in attributes:
                raise GraphMLError(f"line {line:,}: a {kind} without {name}; allowed: with {' and '.join(needed)}")
        found = _Found(kind=kind, line=line, id=attributes.get("id", ""))
        if kind == "edge":
            found.ends = [attributes["source"], attributes["target"]]
            default = "true" if self._directed[-1] else "false"
            found.is_directed = attributes.get("directed", default).strip().lower() in ("true", "1")
        if self._graphs == 1:
            self._found.append(found)
            first = self._lines.get(found.id) if kind == "node" else None
            if first is not None:
                raise GraphMLError(f"line {line:,}: the node {format_value(found.id)} is also in line {first:,}")
            if kind == "node":
                self._lines[found.id] = line
        return found

    def _text(self, text: str) -> None:
        if self._words is not None:
            self._words.append(text)

    def _end(self, name: str) -> None:
        if self._data is not None and name.rpartition(":")[2] == "NodeLabel" and self._words is not None:
            if self._owners and not self._owners[-1].label:
                self._owners[-1].label = "".join(self._words).strip()
            self._words = None
        if self._open and self._open[-1][1] == self._depth:
            self._end_known(self._open.pop()[0])
        self._depth -= 1

    def _end_known(self, local: str) -> None:
        text = "".join(self._words or ()).strip()
        if local == "graph":
            self._directed.pop()
        elif local in ("node", "edge", "hyperedge"):
            self._owners.pop()
        elif local == "data":
            if self._owners and self._data is not None:
                self._owners[-1].data.setdefault(self._data, text)
            self._data = self._words = None
        elif local == "default" and self._key is not None:
            self._key.default, self._words = text, None
        elif local == "key":
            self._key = None
