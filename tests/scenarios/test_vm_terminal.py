"""Interactive use of the VM's terminal: line editing, Ctrl-C, window size, and restored terminal settings."""

import os
import select
import signal
import termios

import pexpect

from tests.conftest import VM


def test_a_shell_in_the_vm_has_line_editing_ctrl_c_and_the_window_size(vm: VM) -> None:
    child = vm.terminal("--clock", "wall", "--", "bash", "--norc", "--noprofile")
    child.expect("# ")
    child.sendline("tty; stty size")
    child.expect("50 160")
    # Type a word with errors; delete one with backspace, and correct the other with the arrow keys.
    child.send("echo helpp\x7flo wrld\x1b[D\x1b[D\x1b[Do\r")
    child.expect("\rhelplo world")
    # The quotes distinguish the echo of the typed line from its output.
    child.sendline('echo asl""eep; sleep 1000')
    child.expect("asleep")
    child.send("\x03")
    child.sendline('echo sta""tus $?')
    child.expect("status 130")
    child.setwinsize(40, 120)
    child.sendline('until [ "$(stty size)" = "40 120" ]; do sleep 0.1; done; echo res""ized')
    child.expect("resized")
    child.sendline("exit 5")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 5


def test_terminal_settings_are_restored_after_the_vm_ends(vm: VM) -> None:
    ours, theirs = os.openpty()
    try:
        before = termios.tcgetattr(theirs)
        for command, number, status in (("kill -9 $$", 0, 137), ("echo up; sleep 1000", signal.SIGTERM, 143)):
            arguments = ("--clock", "wall", "--", "sh", "-c", command)
            with vm.start(*arguments, stdin=theirs, stdout=theirs) as process:
                assert not number or (select.select([ours], [], [], 60)[0] and os.read(ours, 100).startswith(b"up"))
                process.send_signal(number)
                assert process.wait(timeout=30) == status
            assert termios.tcgetattr(theirs) == before
    finally:
        os.close(ours)
        os.close(theirs)


def test_in_virtual_time_a_terminal_shows_output_but_gives_no_input(vm: VM) -> None:
    child = vm.terminal("--clock", "virtual", "--", "sh", "-c", "cat; echo end of input")
    child.expect("end of input")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
