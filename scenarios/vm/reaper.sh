#!/bin/sh
# Stands between the launcher and the VM: runs the kernel, and kills every process of it on SIGTERM, and when the
# launcher dies, however it dies. Called as
#   setpriv --pdeathsig TERM -- sh reaper.sh LAUNCHER KERNEL ARGUMENT…
# The kernel's own children die with it, except the one that it traces for an instant to see whether it may: killed at
# that instant alone, the kernel would leave it stopped for ever. So the whole process group goes.
[ "$PPID" = "$1" ] || exit 1 # the launcher died before the line above could notice
shift
# Silently: the launcher that would read a complaint may be gone, and writing to a closed pipe would end this shell (SIGPIPE).
# It ends after the kernel, so that a caller that waits for it finds no kernel.
trap '{ kill -KILL "-$!" || kill -KILL "$!"; wait "$!"; } 2>/dev/null; exit 143' TERM
setpriv --pdeathsig KILL -- "$@" &
wait "$!" 2>/dev/null
