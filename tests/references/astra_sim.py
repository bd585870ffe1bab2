"""ASTRA-sim with its congestion-aware analytical network, built of its sources in a scratch folder, and run."""

import json
import re
import shutil
import subprocess
from pathlib import Path

from tests.references.debian import LIBRARIES, needed, unpacked

PACKAGES = ["libfmt-dev", "libfmt9", "libspdlog-dev", "libspdlog1.10", "libyaml-cpp-dev", "libyaml-cpp0.7"]
PROTOBUF = ["protobuf-compiler", "libprotoc32", "libprotobuf-dev", "libprotobuf32", "libprotobuf-lite32"]
LATENCY_NS, GIB_S = 1000, 5  # of every link; ASTRA-sim's GB are of 2^30 bytes
SYSTEM = {
    **{"scheduling-policy": "LIFO", "endpoint-delay": 1, "active-chunks-per-dimension": 1},
    **{"preferred-dataset-splits": 1, "all-gather-implementation": ["ring"], "reduce-scatter-implementation": ["ring"]},
    **{"all-to-all-implementation": ["direct"], "collective-optimization": "baseline", "boost-mode": 0},
    "local-mem-bw": 1_000_000,  # GB/s: sums take no time here
}
# In some versions of Chakra's feeder the name that ASTRA-sim uses is in the inner namespace alone.
ALIAS = "namespace Chakra { namespace FeederV3 { class ETFeeder; } using ETFeeder = FeederV3::ETFeeder; }\n"


def built(source: Path, folder: Path) -> Path:
    """Build ASTRA-sim in a new folder, of a copy of its sources and Debian's libraries; return the program."""
    needed("cmake", "make", "g++")
    folder.mkdir()
    root, tree = unpacked([*PACKAGES, *PROTOBUF], folder / "root"), folder / "tree"
    shutil.copytree(source, tree, ignore=shutil.ignore_patterns(".git", "ns-3", "csg-htsim", "docs"))
    include, libraries = root / "usr" / "include", root / LIBRARIES
    defined = "target_compile_definitions(spdlog INTERFACE SPDLOG_COMPILED_LIB SPDLOG_FMT_EXTERNAL)\n"
    for name, path, more in (
        ("fmt", tree / "extern/helper/fmt", "add_library(fmt::fmt ALIAS fmt)\n"),
        ("spdlog", tree / "extern/helper/spdlog", f"add_library(spdlog::spdlog ALIAS spdlog)\n{defined}"),
        ("yaml-cpp", tree / "yaml-cpp", ""),
    ):
        path.mkdir(parents=True, exist_ok=True)
        (path / "CMakeLists.txt").write_text(
            f"add_library({name} INTERFACE)\ntarget_include_directories({name} INTERFACE {include})\n"
            f"target_link_libraries({name} INTERFACE {libraries}/lib{name}.so {libraries}/libfmt.so)\n{more}"
        )
    inner = tree / "extern/network_backend/analytical/extern/yaml-cpp"
    inner.mkdir(parents=True, exist_ok=True)
    (inner / "CMakeLists.txt").write_text("")  # the one above is used
    (tree / "alias.h").write_text(ALIAS)
    schema = tree / "extern/graph_frontend/chakra/schema/protobuf"
    protoc = [root / "usr/bin/protoc", "et_def.proto", "--proto_path=.", "--cpp_out=."]
    subprocess.run(protoc, cwd=schema, check=True, env={"LD_LIBRARY_PATH": str(libraries)})
    protobuf = {"INCLUDE_DIR": include, "LIBRARY": libraries / "libprotobuf.so"}
    protobuf |= {"LIBRARIES": protobuf["LIBRARY"], "PROTOC_EXECUTABLE": protoc[0]}
    options = {
        **{"BUILDTARGET": "congestion_aware", "CMAKE_CXX_FLAGS": f"-include {tree}/alias.h"},
        **{"CMAKE_CXX_FLAGS_RELEASE": "-O0", "CMAKE_UNITY_BUILD": "ON", "CMAKE_UNITY_BUILD_BATCH_SIZE": 12},
        "FETCHCONTENT_SOURCE_DIR_YAML-CPP": tree / "yaml-cpp",
        **{f"Protobuf_{name}": path for name, path in protobuf.items()},
    }
    configure = ["cmake", "-S", tree / "build/astra_analytical", "-B", folder / "out"]
    configure += [f"-D{name}={value}" for name, value in options.items()]
    for command in (configure, ["nice", "make", "-C", folder / "out", "-j2"]):
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr[-2000:]
    return folder / "out" / "bin" / "AstraSim_Analytical_Congestion_Aware"


def ends_ns(
    program: Path, folder: Path, workload: Path, ranks: int, *, custom: Path | None = None, groups: Path | None = None
) -> list[int]:
    """Return when the ranks of a workload end that end, in ns; every two of them have a link in each direction.

    `workload` and `custom`, the schedule of its AllReduces, are paths without .RANK.et; without `custom` it is a ring.
    """
    algorithm = {"all-reduce-implementation": ["ring"]}
    if custom is not None:
        algorithm = {"all-reduce-implementation-custom": [str(custom)]}
    files = {
        "system": json.dumps(SYSTEM | algorithm),
        "network": f"topology: [ FullyConnected ]\nnpus_count: [ {ranks} ]\nbandwidth: [ {GIB_S}.0 ]\n"
        f"latency: [ {LATENCY_NS}.0 ]\n",
        "remote-memory": '{"memory-type": "NO_MEMORY_EXPANSION"}',
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    options = {name: folder / name for name in files} | {"workload": workload}
    options |= {} if groups is None else {"comm-group": groups}
    command = [program, *(f"--{name}-configuration={path}" for name, path in options.items())]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    return [int(ns) for ns in re.findall(r"finished, (\d+) cycles", ran.stdout)]
