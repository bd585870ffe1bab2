"""The packs by name, and the reading of what a scenario names as "PACK:SOURCE". Reads files."""

import hashlib
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from topologies.errors import did_you_mean, format_value, list_all
from topologies.packs.published import Demands, Moves, PackError, Published


@dataclass(frozen=True, kw_only=True)
class Pack:
    """A pack: its module in this package, what it gives, what its source is, and whether that is a path."""

    module: str
    gives: tuple[str, ...]
    source: str
    is_path: bool = True


PACKS = {
    "sndlib": Pack(module="sndlib", gives=("wan", "demands"), source="a network of SNDlib, XML or native"),
    "matrices": Pack(module="matrices", gives=("demands",), source="a folder of SNDlib's dynamic matrices"),
    "topohub": Pack(module="topohub", gives=("wan", "demands"), source="GROUP/MAP", is_path=False),
    "latency": Pack(module="latency", gives=("wan",), source="tables of round-trip times, Markdown or CSV"),
    "skyplane": Pack(module="skyplane", gives=("wan",), source="Skyplane's grid of throughputs, CSV"),
    "yates": Pack(module="yates", gives=("wan", "demands"), source="DATA/NAME, of a folder with topologies and hosts"),
    "satellites": Pack(
        module="satellites", gives=("wan", "moves"), source="FOLDER@0 s or FOLDER@0 s-200 s, of satgenpy"
    ),
}


def is_pack(value: object) -> bool:
    """Return whether a value of a scenario names a pack."""
    return isinstance(value, str) and value.partition(":")[0] in PACKS and ":" in value


def located(value: str, folder: Path) -> str:
    """Return a pack's name with the path in it made absolute, from this folder."""
    name, _, source = value.partition(":")
    return f"{name}:{Path(folder, source).absolute()}" if PACKS[name].is_path and source else value


def title_of(value: str) -> str:
    """Return the short name of what a pack reads: the last part of its path."""
    return Path(value.partition(":")[2]).stem


def wan_of(value: str) -> Published:
    """Return the WAN that a text such as "sndlib:abilene.xml" names; raises PackError."""
    found = _read(value, "wan")
    assert isinstance(found, Published)
    return found


def demands_of(value: str) -> Demands:
    """Return the traffic matrices that a text such as "matrices:FOLDER" names; raises PackError."""
    found = _read(value, "demands")
    assert isinstance(found, Demands)
    return found


def moves_of(value: str, every_s: float) -> Moves:
    """Return the moving links that a text such as "satellites:FOLDER@0 s-200 s" names; raises PackError."""
    found = _read(value, "moves", every_s)
    assert isinstance(found, Moves)
    return found


def files_of(value: str) -> list[Path]:
    """Return the files of the demands or movements that a text names, none if they cannot be found any more."""
    name, _, source = value.partition(":")
    module = import_module(f"topologies.packs.{PACKS[name].module}")
    try:
        return list(module.files(source)) if hasattr(module, "files") else [Path(source)]
    except PackError:
        return []


def digest_of(value: str) -> str:
    """Return the SHA-256 of the data that a text names: of what sha256sum prints for their files, in order of their
    names. "" if a file is gone."""
    files, digest = files_of(value), hashlib.sha256()
    try:
        for file in sorted(files, key=lambda one: one.name):
            digest.update(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n".encode())
    except OSError:
        return ""
    return digest.hexdigest() if files else ""


def _read(value: str, what: str, *more: float) -> object:
    name, colon, source = value.partition(":")
    able = [each for each, pack in PACKS.items() if what in pack.gives]
    if not colon or name not in PACKS:
        raise PackError(f"{format_value(value)} names no pack; allowed: {_forms(able)}{did_you_mean(name, PACKS)}")
    if what not in PACKS[name].gives:
        raise PackError(f"the pack {name} has no {what}; allowed: {list_all(able)}")
    if not source or "\0" in source:
        raise PackError(f"{format_value(value)} names no source; allowed: {name}:SOURCE, {PACKS[name].source}")
    return getattr(import_module(f"topologies.packs.{PACKS[name].module}"), what)(source, *more)


def _forms(names: list[str]) -> str:
    return ", ".join(f'"{name}:..."' for name in names)
