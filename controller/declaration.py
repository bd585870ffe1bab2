"""The fabric that a controller is for, and the socket it answers on, where nobody hands it either.

Mininet's users start the app by the name of its module (`ryu-manager controller.app`), and give it what is not the
default in the section [longhaul] of the framework's configuration file: `fabric`, or `gpus` and the like, and `socket`.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from controller import framework
from controller.lines import ProtocolError
from controller.protocol import read_spec
from topologies.declared import declared
from topologies.errors import FabricError
from topologies.fabric import Fabric, build_fabric
from topologies.wan import WAN_PRESETS

COUNTS = ("gpus", "leaves", "spines", "border_routers", "wan")
"""What declares a fabric, as `topologies.declared` takes it."""

_TEXTS = ("gpus", "wan")


class DeclarationError(ValueError):
    """A fabric that cannot be had: one sentence that names it."""


def fabric_of(file: Path | None, counts: Mapping[str, str]) -> Fabric:
    """The fabric of a file, or of COUNTS as text; raises DeclarationError."""
    if file is None:
        try:
            gpus, wan = counts.get("gpus", "8"), counts.get("wan", WAN_PRESETS[0])
            return build_fabric(declared(gpus=gpus, wan=wan, **_numbers(counts)))
        except FabricError as error:
            raise DeclarationError(f"the fabric cannot be had: {_sentence(error)}") from None
    if counts:
        raise DeclarationError(f"--fabric says all of the fabric: {', '.join(counts)} cannot be given beside it")
    try:
        return build_fabric(read_spec(file.read_bytes()))
    except (OSError, ProtocolError, FabricError) as error:
        raise DeclarationError(f"the fabric {file} cannot be had: {_sentence(error)}") from None


def _numbers(counts: Mapping[str, str]) -> dict[str, int]:
    texts = {name: text for name, text in counts.items() if name not in _TEXTS}
    wrong = next((name for name, text in texts.items() if not text.isdecimal() or len(text) > 6), None)
    if wrong is not None:
        raise DeclarationError(f'{wrong.replace("_", " ")}: "{texts[wrong][:40]}" is no number of them in a site')
    return {name: int(text) for name, text in texts.items()}


def configured() -> tuple[Fabric, Path]:
    """The fabric and the socket of the framework's configuration file; raises DeclarationError."""
    given = framework.configured("longhaul", ("fabric", "socket", *COUNTS))
    file, path = given.pop("fabric", None), given.pop("socket", None)
    return fabric_of(Path(file) if file else None, given), Path(path) if path else default_socket()


def default_socket() -> Path:
    """Where this user's controller answers unless it is told another place, in a folder that is made if need be and
    that no other user writes to."""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or Path.home() / ".cache" / "longhaul")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder / "longhaul-controller.sock"


def _sentence(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)).replace("\n", "; ")
