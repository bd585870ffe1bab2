"""Runs Mininet's own command, as its users run it, with a controller in the VM."""

from collections.abc import Sequence

from tests.conftest import PROJECT, VM

CUSTOM = PROJECT / "topologies" / "mininet_topo.py"


def run_mn(vm: VM, controller: str, topology: str, *, look: str, options: str = "", lines: Sequence[str] = ()) -> str:
    """Have mn, with these further options, run pingall on a fabric while this controller runs, inspect the host `look`,
    and run these lines at its prompt; return all output.

    Fails if mn fails, if the controller ends before it is stopped, or if mn leaves a bridge or a cable behind.
    """
    commands = vm.folder / "commands"
    commands.write_text(
        f"sh ovs-vsctl get bridge s1b0 datapath_id\n{look} ip -br addr show dev {look}-eth0\n"
        f"{look} cat /sys/class/net/{look}-eth0/mtu\n{look} tc qdisc show dev {look}-eth0\n"
        f"{look} tc class show dev {look}-eth0\n" + "".join(f"{line}\n" for line in lines)
    )
    commands.chmod(0o644)
    mn = f"mn --custom {CUSTOM} --topo longhaul,{topology} --controller remote --switch ovs,protocols=OpenFlow13"
    # Mininet closes every possible descriptor for each of its shells: a low limit keeps that short. The programs that
    # setup.sh installs must suffice: mn runs with its own Python, without a PYTHONPATH to the project's packages. Its
    # input must not end: while a node runs a command, Mininet polls it without waiting, which holds the virtual clock.
    script = f"""
        ulimit -n 256
        python3 -m scenarios.vm.openvswitch up
        {controller} & controller=$!
        mkfifo /run/input
        env -u PYTHONPATH {mn} {options} --post {commands} --test pingall <>/run/input || exit
        [ -z "$(ovs-vsctl list-br)$(ip -br link show type veth)" ] || exit 77
        kill $controller
    """
    ended = vm.run("--", "sh", "-c", script, env={"PATH": "/usr/bin:/bin"}, timeout=400)
    shown = ended.out + ended.err
    assert ended.status == 0, shown
    return shown
