"""The VM's pure parts: the kernel's arguments, the request to its init, kernel configurations, and post-mortems."""

import base64
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scenarios.vm import CannotRunError, VMError, VMUsageError, autopsy, boot, build, host, kconfig, kernel

CHANNELS = boot.Channels(kernel=(3, 4), stdout=(5, 6), stderr=(7, 8), control=(9, 10))
NASTY = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=30)
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]{0,10}", fullmatch=True)


def arguments(**changed: object) -> tuple[str, ...]:
    wanted = {"clock": "virtual", "memory_bytes": 2**31, "init": "/a b/init", "folder": "/proc/", "channels": CHANNELS}
    return boot.kernel_command_line(**(wanted | changed))  # type: ignore[arg-type]


def test_only_the_virtual_clock_travels_in_time() -> None:
    assert "time-travel=inf-cpu" in arguments(clock="virtual")
    assert not any(word.startswith("time-travel") for word in arguments(clock="wall"))
    assert set(arguments(clock="virtual")) - set(arguments(clock="wall")) == {"time-travel=inf-cpu"}


def test_the_root_is_read_only_and_the_memory_is_what_was_asked_for() -> None:
    words = arguments(memory_bytes=3 * 2**30)
    assert "ro" in words and "rw" not in words
    assert "mem=3072M" in words


def test_a_project_in_a_folder_with_a_quote_is_refused() -> None:
    with pytest.raises(VMUsageError, match="quotes"):
        arguments(init='/a"b/init')


@given(
    command=st.lists(NASTY, min_size=1, max_size=4).filter(lambda words: words[0] != ""),
    environment=st.dictionaries(NAMES, NASTY, max_size=4),
    directory=NASTY,
    results=st.none() | NASTY,
)
def test_the_request_says_to_a_shell_exactly_what_was_asked(
    command: list[str], environment: dict[str, str], directory: str, results: str | None
) -> None:
    data = boot.request(
        command, directory=directory, environment=environment, results=results, terminal=False, stdin=True
    )
    assert data.count(b"\n") == 1 and data.endswith(b"\n")
    text = base64.b64decode(data)
    # setsid stands in for COMMAND and its environment: it writes what it was called with, NUL by NUL.
    script = (
        b'setsid() { printf "%s\\0" "$@"; }\n'
        + text.replace(b"{ exec setsid", b"{ setsid")
        + b'\nprintf "%s\\0" "$directory" "$results" "$terminal" "$stdin"\nlaunch\n'
    )
    said = subprocess.run(["/bin/sh", "-s"], input=script, capture_output=True, check=True).stdout
    words = [os.fsdecode(word) for word in said.split(b"\0")[:-1]]
    assert words[:4] == [directory, results or "", "no", "yes"]
    assert words[4:7] == ["env", "-i", "--"]
    wrapper = ["sh", "-c", 'exec "$0" "$@"'] if "=" in command[0] else []
    assert words[7:] == [f"{name}={value}" for name, value in environment.items()] + wrapper + command


def test_the_environment_inside_leaves_the_hosts_session_behind() -> None:
    inside = boot.guest_environment(
        {"PATH": "/opt/x:/usr/bin", "DISPLAY": ":0", "SSH_AUTH_SOCK": "/s", "TMPDIR": "/t", "MINE": "1", "USER": "ada"}
    )
    assert inside["MINE"] == "1" and inside["USER"] == "root"
    assert inside["PATH"].split(":")[:2] == ["/opt/x", "/usr/bin"] and "/usr/sbin" in inside["PATH"].split(":")
    assert not inside.keys() & {"DISPLAY", "SSH_AUTH_SOCK", "TMPDIR"}
    assert inside["PYTHONHASHSEED"] == "0"


def test_the_caller_may_choose_another_hash_seed() -> None:
    assert boot.guest_environment({"PYTHONHASHSEED": "7"})["PYTHONHASHSEED"] == "7"


@pytest.mark.parametrize("hidden", ["/run/x", "/proc", "/dev/shm/a", "/sys/class"])
def test_a_working_directory_that_the_vm_hides_is_refused_unless_it_is_in_the_results(hidden: str) -> None:
    with pytest.raises(VMUsageError, match="hidden in the VM"):
        boot.check_directory(hidden, results=None)
    boot.check_directory(hidden, results=hidden)
    boot.check_directory("/runway", results=None)


def test_too_little_memory_is_a_mistake_of_the_user() -> None:
    with pytest.raises(VMUsageError, match="256 MiB or more"):
        host.check_memory(2**20)


def test_more_memory_than_the_machine_has_room_for_names_the_room() -> None:
    with pytest.raises(CannotRunError, match=r"the VM's 1152921\.[0-9]+ TB of memory \(/dev/shm has ") as caught:
        host.memory_folder(2**60, {})
    assert caught.value.status == 3
    assert "--memory" in caught.value.option and "--memory" not in str(caught.value)


@pytest.mark.parametrize(
    ("size_bytes", "words"), [(1_866_612_736, "1.8 GB"), (3 * 2**30, "3.2 GB"), (268_435_456, "268 MB"), (999, "999 B")]
)
def test_memory_is_told_in_units_that_can_be_read(size_bytes: int, words: str) -> None:
    assert host.about(size_bytes) == words


@pytest.mark.parametrize("folder", ["/", "/proc/x", "/sys", "/dev"])
def test_the_systems_own_folders_cannot_hold_results(folder: str) -> None:
    with pytest.raises(VMUsageError, match="cannot be the results folder"):
        host.results_folder(folder)


def test_a_results_folder_without_a_parent_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotRunError, match=r"a/b cannot be made: No such file"):
        host.results_folder(tmp_path / "a" / "b")
    assert host.results_folder(tmp_path / "a") == str(tmp_path / "a")


def test_the_fragment_wins_over_the_configuration_it_is_merged_into() -> None:
    base = "# a comment\nCONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=m\n"
    found = kconfig.options(kconfig.merged(base, "CONFIG_B=y\nCONFIG_C=n\n"))
    assert found == {"CONFIG_A": "y", "CONFIG_B": "y", "CONFIG_C": "n"}


def test_an_option_that_did_not_survive_is_found() -> None:
    wanted = kconfig.options('CONFIG_A=y\nCONFIG_S="null"\nCONFIG_OFF=n\n')
    assert kconfig.missing(wanted, kconfig.options('CONFIG_A=y\nCONFIG_S="null"\n')) == []
    assert kconfig.missing(wanted, {"CONFIG_A": "m", "CONFIG_S": '"null"', "CONFIG_OFF": "y"}) == [
        "CONFIG_A=y",
        "CONFIG_OFF=n",
    ]


def test_a_broken_fragment_names_its_line() -> None:
    with pytest.raises(ValueError, match="line 2 is no kernel option"):
        kconfig.options("CONFIG_A=y\nCONFIG B\n")


def test_the_fingerprint_changes_with_the_options_alone() -> None:
    one = kconfig.fingerprint("CONFIG_A=y\nCONFIG_B=y\n")
    assert kconfig.fingerprint("# why\nCONFIG_B=y\n\nCONFIG_A=y\n") == one
    assert kconfig.fingerprint("CONFIG_A=y\n") != one
    assert kconfig.fingerprint("CONFIG_A=y\nCONFIG_B=y\n", ["a patch"]) != one


def test_the_newest_cached_kernel_is_taken() -> None:
    paths = [kernel.cached(Path("/c"), version, "abc") for version in ("6.12.9-1", "6.12.117-1~deb12u1", "6.8.0-49.49")]
    assert kernel.newest(paths) == paths[1]
    assert kernel.newest([]) is None


def test_the_proven_source_is_preferred_and_else_the_newest() -> None:
    sources = [Path(f"/usr/src/linux-source-{version}") for version in ("6.1.tar.xz", "6.9.tar.xz", "6.11.0.tar.bz2")]
    assert build.newest_source(sources) == sources[2]
    assert build.newest_source([*sources, Path("/usr/src/linux-source-6.12.tar.xz")]).name == "linux-source-6.12.tar.xz"
    with pytest.raises(VMError, match="no kernel source"):
        build.newest_source([Path("/usr/src/linux-source-6.12-rt.patch")])


@pytest.mark.parametrize(
    ("log", "status", "ready", "sentence", "expected"),
    [
        ("[1.0] Kernel panic - not syncing: Attempted to kill init!\n[1.0] CPU", 1, True, "panicked: Attempted to", 1),
        ("Kernel panic - not syncing: Out of memory: system-wide", 1, True, "out of memory", 1),
        ("ptrace: Operation not permitted\ncheck_ptrace : expected", 1, False, "forbids ptrace", 3),
        ("x", 128 + 7, True, "out of room", 3),
        ("[0.1] some words\n\n", 128 + 11, False, "signal 11 before COMMAND started; its last words: some", 1),
    ],
)
def test_a_dead_vm_says_why(log: str, status: int, ready: bool, sentence: str, expected: int) -> None:
    error = autopsy.error(log, status=status, ready=ready)
    assert sentence in str(error)
    assert "\n" not in str(error)
    assert error.status == expected
