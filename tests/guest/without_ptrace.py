"""Runs a command with ptrace forbidden, as in a strict container: ``without_ptrace.py COMMAND…``."""

import ctypes
import os
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
PTRACE, EPERM = 101, 1
# struct sock_filter: load the system call's number; if it is ptrace, return EPERM, otherwise allow it.
FILTER = b"".join(
    struct.pack("HBBI", *words)
    for words in ((0x20, 0, 0, 0), (0x15, 0, 1, PTRACE), (0x06, 0, 0, 0x00050000 | EPERM), (0x06, 0, 0, 0x7FFF0000))
)


class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
    PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(Program(len(FILTER) // 8, FILTER)), 0, 0
):
    raise OSError(ctypes.get_errno(), "seccomp")
os.execvp(sys.argv[1], sys.argv[1:])
