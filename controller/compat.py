"""The OpenFlow framework under the app: os-ken, or stock Ryu 4.34 where there is no os-ken.

The two have the same classes under different names; every difference is here, and what each needs before it runs.
Import this before anything that uses sockets: Ryu's threads are green, and its sockets must be too.
"""

import importlib.util
import os
import select
import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

os.environ["OSKEN_HUB_TYPE"] = "native"  # real threads, whatever the environment asks for; read on import
NAME = "os_ken" if importlib.util.find_spec("os_ken") else "ryu"


class _Later(ModuleType):
    """A module that is loaded when something of it is used."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        spec = importlib.util.find_spec(name)
        if spec and spec.submodule_search_locations:
            self.__path__ = spec.submodule_search_locations
        package, _, module = name.rpartition(".")
        sys.modules[name] = self
        if package:
            setattr(sys.modules[package], module, self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what the import system looks for
            raise AttributeError(name)
        for stand_in in [name for name, module in sys.modules.items() if isinstance(module, _Later)]:
            del sys.modules[stand_in]
        return getattr(importlib.import_module(self.__name__), name)


if NAME == "os_ken":
    # What os-ken imports and does not use here is a third of what it takes to import, in the VM 0.2 s of the processor.
    pbr: Any = importlib.import_module("pbr")  # of which it asks its own version
    pbr.version = sys.modules["pbr.version"] = ModuleType("pbr.version")
    pbr.version.VersionInfo = lambda _: SimpleNamespace(version_string=str)
    for _name in ("importlib.metadata", "rfc3986", "stevedore", "os_ken.lib.packet", "os_ken.lib.packet.packet"):
        if _name not in sys.modules:
            _Later(_name)
    del pbr.version, sys.modules["pbr.version"]

if NAME == "ryu":
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # eventlet advises against itself; Ryu has nothing else
        import eventlet
        import eventlet.wsgi

    if not hasattr(eventlet.wsgi, "ALREADY_HANDLED"):
        eventlet.wsgi.ALREADY_HANDLED = object()  # Ryu's WSGI imports a name that eventlet has dropped
    # Threads stay real, as under ryu-manager: the framework makes its own with `hub.spawn`.
    eventlet.monkey_patch(thread=False)

# First: expressions are compiled in it. Below many imports that is where a chunk of Python's stack ends, which is then
# mapped and unmapped 3,000 times, a tenth of the processor time of a short run in the VM.
_cfg = importlib.import_module(f"{NAME}.cfg")
_base = importlib.import_module(f"{NAME}.base.app_manager")  # next: in Ryu the controller's modules need it loaded

hub = importlib.import_module(f"{NAME}.lib.hub")
ofp_event = importlib.import_module(f"{NAME}.controller.ofp_event")
_handler = importlib.import_module(f"{NAME}.controller.handler")
importlib.import_module(f"{NAME}.controller.controller")  # it declares the options set below
OFP_VERSION = importlib.import_module(f"{NAME}.ofproto.ofproto_v1_3").OFP_VERSION

App = _base.OSKenApp if NAME == "os_ken" else _base.RyuApp
AppManager = _base.AppManager
set_ev_cls = _handler.set_ev_cls
CONFIG, MAIN, DEAD = _handler.CONFIG_DISPATCHER, _handler.MAIN_DISPATCHER, _handler.DEAD_DISPATCHER

LOOPBACK = "127.0.0.1"


def start(app: str, *, port: int, host: str = LOOPBACK, **arguments: object) -> list[object]:
    """Load the module `app` and what it needs, give its app these arguments, and listen for switches at this address.

    Returns the framework's threads: they run until the process ends, and one that ends earlier is a failure. The
    managers that the frameworks ship are not used: os-ken 4 has none, and its `run_apps` trips over an interrupt.
    """
    _cfg.CONF([], project=NAME, default_config_files=[])
    _cfg.CONF.set_override("ofp_listen_host", host)
    _cfg.CONF.set_override("ofp_tcp_listen_port", port)
    apps = AppManager.get_instance()
    apps.load_apps([app])
    contexts = apps.create_contexts()
    threads: list[object] = apps.instantiate_apps(**contexts, **arguments)
    return threads


def configured(section: str, names: Sequence[str]) -> dict[str, str]:
    """The options of these names that a section of the framework's configuration file has."""
    cfg = importlib.import_module("oslo_config.cfg")
    _cfg.CONF.register_opts([cfg.StrOpt(name) for name in names], group=section)
    given = {name: getattr(getattr(_cfg.CONF, section), name) for name in names}
    return {name: value for name, value in given.items() if value is not None}


def has_hung_up(datapath: Any) -> bool:
    """Whether a switch has closed its connection and the framework has not noticed; reads nothing.

    os-ken's reader does notice, but then waits for the writing thread, which waits for something to write. Ryu's reader
    ends that thread.
    """
    if NAME == "ryu":
        return False
    poll = select.poll()
    try:
        # Not by MSG_PEEK: the socket has a timeout, which a peek would wait for if the reader is quicker.
        poll.register(datapath.socket, select.POLLRDHUP)
    except (OSError, ValueError):  # closed on this side
        return True
    return bool(poll.poll(0))


def version() -> str:
    """The framework and its version, as "os_ken 4.2.2"."""
    from importlib import metadata  # slow to import

    known = getattr(sys.modules[NAME], "version", None)
    return f"{NAME} {known or metadata.version(NAME.replace('_', '-'))}"
