"""A person at the VM's terminal: line editing, Ctrl-C, the window's size, and the terminal as it was afterwards."""

import os
import select
import signal
import termios

import pexpect

from tests.conftest import VM


def test_a_shell_edits_lines_hears_ctrl_c_and_knows_its_window(vm: VM) -> None:
    child = vm.terminal("--clock", "wall", "--", "bash", "--norc", "--noprofile")
    child.expect("# ")
    child.sendline("tty; stty size")
    child.expect("50 160")
    # A word with a typing error in it, taken back with backspace, and put right with the arrow keys.
    child.send("echo helpp\x7flo wrld\x1b[D\x1b[D\x1b[Do\r")
    child.expect("\rhelplo world")
    # The quotes keep the shell's echo of a line from passing for its output.
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


def test_the_terminal_is_as_it_was_afterwards(vm: VM) -> None:
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


def test_a_terminal_is_for_watching_only_in_virtual_time(vm: VM) -> None:
    child = vm.terminal("--clock", "virtual", "--", "sh", "-c", "cat; echo end of input")
    child.expect("end of input")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
