#!/bin/sh
# Runs the kernel for the launcher, and kills all of the kernel's processes on SIGTERM, which it also gets when the
# launcher ends for any reason. Called as
#   setpriv --pdeathsig TERM -- sh reaper.sh LAUNCHER KERNEL ARGUMENT…
# The kernel's children die with it, with one exception: the child that it traces for an instant at the start to test
# whether ptrace is allowed would stay stopped for ever if only the kernel were killed at that instant. The reaper
# therefore kills the whole process group.
[ "$PPID" = "$1" ] || exit 1 # the launcher died before the line above could notice
shift
# Without output: the launcher may have ended, and writing to its closed pipe would end this shell (SIGPIPE). This shell
# ends after the kernel, so that no kernel is left when a caller has waited for it.
trap '{ kill -KILL "-$!" || kill -KILL "$!"; wait "$!"; } 2>/dev/null; exit 143' TERM
setpriv --pdeathsig KILL -- "$@" &
wait "$!" 2>/dev/null
