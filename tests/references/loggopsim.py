"""LogGOPSim and its generators of GOAL, built of their sources in a scratch folder."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.references.debian import LIBRARIES, environment, needed, unpacked

PACKAGES = ["gengetopt", "re2c", "libgraphviz-dev", "libcgraph6", "libcdt5"]
BYTES, SEGMENT = 1_000_000, 250_000
MODEL = ["-L", "1000", "-o", "0", "-g", "0", "-G", "1", "-O", "0", "-S", "1000000000"]  # ns, and ns a byte
SCHEDGEN2 = [
    *("incast linear", "outcast linear", "scatter linear", "scatter binomialtree", "reduce linear"),
    *("reduce binomialtree", "bcast linear", "bcast binomialtree", "allreduce recdoub", "allreduce ring"),
    *("alltoall linear", "alltoallv linear"),
]


def built(source: Path, folder: Path) -> Path:
    """Build LogGOPSim, txt2bin and schedgen in a new folder, of a copy of their sources, and return it."""
    needed("gcc", "g++")
    folder.mkdir()
    root = unpacked(PACKAGES, folder / "root")
    for name in ("LogGOPSim", "Schedgen"):
        shutil.copytree(source / "src" / name, folder, dirs_exist_ok=True)
    # It sorts what is ready by kind with an unstable sort, so of more than 16 receives the wrong one gets a message,
    # and it ends with unmatched ones for its own ring of 16 ranks.
    main = folder / "LogGOPSim.cpp"
    main.write_text(main.read_text().replace("std::sort(", "std::stable_sort("))
    # Its reader of MPI's traces, which needs Boost, is left out.
    tags = re.findall(r"(?ms)^int MAKE_TAG.*?^}", (folder / "process_trace.cpp").read_text())[0]
    includes = '#include <cstdio>\n#include "schedgen.hpp"\n'
    (folder / "none.cpp").write_text(f"{includes}{tags}\nvoid process_trace(gengetopt_args_info *) {{}}\n")
    flags = f"-std=c++11 -O1 -w -fcommon -I{root}/usr/include"
    libraries = f"-L{root}/{LIBRARIES} -lcgraph -Wl,-rpath-link,{root}/{LIBRARIES}"
    subprocess.run(
        f"for it in loggopsim txt2bin schedgen; do gengetopt -F ${{it}}_cmdline -i ${{it}}_cmdline.ggo; done &&"
        "re2c -o txt2bin.cpp txt2bin.re && gcc -w -c *_cmdline.c &&"
        f"g++ {flags} LogGOPSim.cpp loggopsim_cmdline.o -o LogGOPSim {libraries} &&"
        f"g++ {flags} txt2bin.cpp txt2bin_cmdline.o -o txt2bin &&"
        f"g++ {flags} schedgen.cpp buffer_element.cpp none.cpp schedgen_cmdline.o -o schedgen",
        shell=True,
        cwd=folder,
        env=environment(root),
        check=True,
    )
    return folder


def generated(tools: Path, source: Path, several: tuple[int, ...]) -> Iterator[tuple[str, Path]]:
    """Yield the name and the GOAL of every pattern of both generators, for several numbers of ranks."""
    patterns = re.findall(r'ptrn".*?values="([^ ]+?)"\s', (tools / "schedgen_cmdline.ggo").read_text(), re.DOTALL)[0]
    for ranks in several:
        for pattern in re.findall(r"\w+", patterns):
            if pattern != "trace":  # of MPI programs
                path = tools / f"{pattern}-{ranks}.goal"
                sizes = ["--datasize", str(BYTES), "--segmentsize", str(SEGMENT), "--nway", "3"]
                command = [tools / "schedgen", "--ptrn", pattern, "--commsize", str(ranks), *sizes, "-o", path]
                subprocess.run(command, check=True, capture_output=True)
                yield f"{pattern} {ranks}", path
        for words in SCHEDGEN2:
            collective, pattern = words.split()
            path = tools / f"{collective}-{pattern}-{ranks}.goal"
            sizes = ["--comm_size", str(ranks), "--datasize", str(BYTES), "--output", str(path)]
            command = [sys.executable, "schedgen.py", collective, "--ptrn", pattern, *sizes]
            subprocess.run(command, check=True, cwd=source / "src" / "Schedgen2")
            yield f"{words} {ranks}", path


def simulated_ns(tools: Path, path: Path) -> list[int]:
    """Return when each rank ends in LogGOPSim; [] if messages are left over."""
    binary = path.with_suffix(".bin")
    subprocess.run([tools / "txt2bin", "-i", path, "-o", binary], check=True, capture_output=True)
    command = [tools / "LogGOPSim", "-f", binary, *MODEL]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment(tools / "root"))
    return [int(ns) for ns in re.findall(r"Host \d+: (\d+)", ran.stdout)]
