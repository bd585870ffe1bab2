#!/bin/sh
# Stands between the launcher and the VM: runs the kernel, and kills every process of it when told to (SIGTERM) or when
# the launcher dies, however it dies. Called as
#   setpriv --pdeathsig TERM -- sh reaper.sh LAUNCHER KERNEL ARGUMENT…
# The kernel's own children die with it, except the one that it traces for an instant to see whether it may: killed at
# that instant alone, the kernel would leave it stopped for ever. So the whole process group goes.
[ "$PPID" = "$1" ] || exit 1 # the launcher died before we could hear of it
shift
# Silently: the launcher that would read a complaint may be gone, and a complaint to nobody is the end (SIGPIPE).
# It ends after the kernel, so that whoever waits for it finds none.
trap '{ kill -KILL "-$!" || kill -KILL "$!"; wait "$!"; } 2>/dev/null; exit 143' TERM
setpriv --pdeathsig KILL -- "$@" &
wait "$!" 2>/dev/null
