"""The OpenFlow framework under the app: os-ken, or stock Ryu 4.34 where os-ken is not installed.

The two have the same classes under different names. This module hides every difference, and prepares each framework to
run. Import it before any module that uses sockets: Ryu's threads are green, so its sockets must be green, too.
"""

import importlib.util
import os
import select
import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

os.environ["OSKEN_HUB_TYPE"] = "native"  # real threads; os-ken reads this on import
NAME = "os_ken" if importlib.util.find_spec("os_ken") else "ryu"


class _Later(ModuleType):
    """A placeholder for a module that is imported when one of its attributes is first used."""

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
        if name.startswith("__"):  # the import system looks for these
            raise AttributeError(name)
        for stand_in in [name for name, module in sys.modules.items() if isinstance(module, _Later)]:
            del sys.modules[stand_in]
        return getattr(importlib.import_module(self.__name__), name)


if NAME == "os_ken":
    # A third of the time to import os-ken, 0.2 s of processor time in the VM, is for modules that are not used here.
    pbr: Any = importlib.import_module("pbr")  # os-ken asks it for its own version
    pbr.version = sys.modules["pbr.version"] = ModuleType("pbr.version")
    pbr.version.VersionInfo = lambda _: SimpleNamespace(version_string=str)
    for _name in ("importlib.metadata", "rfc3986", "stevedore", "os_ken.lib.packet", "os_ken.lib.packet.packet"):
        if _name not in sys.modules:
            _Later(_name)
    del pbr.version, sys.modules["pbr.version"]

if NAME == "ryu":
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # eventlet warns against its own use, but Ryu needs it
        import eventlet
        import eventlet.wsgi

    if not hasattr(eventlet.wsgi, "ALREADY_HANDLED"):
        eventlet.wsgi.ALREADY_HANDLED = object()  # Ryu's WSGI imports this name, which eventlet has dropped
    # `threading` stays real, as under ryu-manager: the framework creates its green threads with `hub.spawn`.
    eventlet.monkey_patch(thread=False)

# Imported first, because it compiles regular expressions. Deep in a chain of imports that would happen at the end of a
# chunk of Python's stack, which would be mapped and unmapped 3,000 times: a tenth of a short run's processor time in
# the VM.
_cfg = importlib.import_module(f"{NAME}.cfg")
_base = importlib.import_module(f"{NAME}.base.app_manager")  # second, because Ryu's controller modules need it loaded

hub = importlib.import_module(f"{NAME}.lib.hub")
ofp_event = importlib.import_module(f"{NAME}.controller.ofp_event")
_handler = importlib.import_module(f"{NAME}.controller.handler")
importlib.import_module(f"{NAME}.controller.controller")  # it declares the options set below
OFP_VERSION = importlib.import_module(f"{NAME}.ofproto.ofproto_v1_3").OFP_VERSION

App = _base.OSKenApp if NAME == "os_ken" else _base.RyuApp
AppManager = _base.AppManager
set_ev_cls = _handler.set_ev_cls
HELLO, CONFIG = _handler.HANDSHAKE_DISPATCHER, _handler.CONFIG_DISPATCHER
MAIN, DEAD = _handler.MAIN_DISPATCHER, _handler.DEAD_DISPATCHER

LOOPBACK = "127.0.0.1"


def start(app: str, *, port: int, host: str = LOOPBACK, **arguments: object) -> list[object]:
    """Load the module `app`, create its app with `arguments`, and listen for switches at `host` and `port`.

    Return the framework's threads. They run until the process ends; a thread that ends earlier has failed. The
    frameworks' own commands are not used: os-ken 4 has none, and its `run_apps` fails on an interrupt.
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
    """Return those of the named options that a section of the framework's configuration file sets."""
    cfg = importlib.import_module("oslo_config.cfg")
    _cfg.CONF.register_opts([cfg.StrOpt(name) for name in names], group=section)
    given = {name: getattr(getattr(_cfg.CONF, section), name) for name in names}
    return {name: value for name, value in given.items() if value is not None}


def has_hung_up(datapath: Any) -> bool:
    """Return whether a switch has closed its connection and the framework has not noticed yet. Reads no data.

    os-ken's reading thread does notice, but then waits for the writing thread, which waits for a message to write.
    Ryu's reading thread ends the writing thread.
    """
    if NAME == "ryu":
        return False
    poll = select.poll()
    try:
        # Not by MSG_PEEK: if the reading thread is quicker, a peek would wait for the socket's timeout.
        poll.register(datapath.socket, select.POLLRDHUP)
    except (OSError, ValueError):  # closed on this side
        return True
    return bool(poll.poll(0))


def version() -> str:
    """Return the framework and its version, such as "os_ken 4.2.2"."""
    from importlib import metadata  # slow to import

    known = getattr(sys.modules[NAME], "version", None)
    return f"{NAME} {known or metadata.version(NAME.replace('_', '-'))}"
