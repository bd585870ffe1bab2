"""Reads the fabric and the socket of a controller from a JSON file, options, or the framework's configuration file.

Users of Mininet may start the app by its module's name (`ryu-manager controller.app`). They then set options in the
section [longhaul] of the framework's configuration file: `fabric`, or `gpus` etc., and `socket`.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from controller import compat
from controller.api.protocol import ProtocolError, read_spec
from topologies.errors import FabricError
from topologies.fabric.fabric import Fabric, FabricSpec, build_fabric
from topologies.fabric.wan import WAN_PRESETS

COUNTS = ("gpus", "leaves", "spines", "border_routers", "wan")
"""The options that declare a fabric, named as the arguments of `FabricSpec.parse`."""


class DeclarationError(ValueError):
    """Raised for a fabric that cannot be built or a token file that cannot be used; the message is one sentence."""


def fabric_of(file: Path | None, counts: Mapping[str, str]) -> Fabric:
    """Build the fabric from a JSON file or from COUNTS given as text; raises DeclarationError."""
    if file is not None and counts:
        raise DeclarationError(f"--fabric declares the whole fabric, so {', '.join(counts)} cannot be given with it")
    try:
        if file is not None:
            return build_fabric(read_spec(file.read_bytes()))
        gpus, wan = counts.get("gpus", "8"), counts.get("wan", WAN_PRESETS[0])
        numbers = {name: _number(name, text) for name, text in counts.items() if name not in ("gpus", "wan")}
        return build_fabric(FabricSpec.parse(gpus=gpus, wan=wan, **numbers))
    except (OSError, ProtocolError, FabricError) as error:
        which = "the fabric" if file is None else f"the fabric {file}"
        raise DeclarationError(f"{which} cannot be built: {sentence(error)}") from None


def _number(name: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 6:
        raise DeclarationError(f'{name.replace("_", " ")}: expected a whole number, got "{text[:40]}"')
    return int(text)


def configured() -> tuple[Fabric, Path]:
    """Return the fabric and the socket from the framework's configuration file; raises DeclarationError."""
    given = compat.configured("longhaul", ("fabric", "socket", *COUNTS))
    file, path = given.pop("fabric", None), given.pop("socket", None)
    return fabric_of(Path(file) if file else None, given), Path(path) if path else default_socket()


def default_socket() -> Path:
    """Return the default socket of this user's controllers; its folder is created, for this user only, if missing.

    Raises DeclarationError if the user has no such folder.
    """
    try:
        folder = Path(os.environ.get("XDG_RUNTIME_DIR") or Path.home() / ".cache" / "longhaul")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home directory
        raise DeclarationError(f"the socket's folder cannot be created: {error}; allowed: --socket PATH") from None
    return folder / "longhaul-controller.sock"


def sentence(error: Exception) -> str:
    """Return the message of an error on one line."""
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)).replace("\n", "; ")
