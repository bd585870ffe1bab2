#!/bin/sh
# The VM's init (process 1). Its root is the host's file system, read-only; it lays an overlay over that, which is
# thrown away with the VM, asks the host over tty3 what to run, runs it, and tells tty3 how it ended.
#   tty0  kernel messages    tty1  COMMAND's stdin (in frames) and stdout, or its terminal    tty2  COMMAND's stderr
#   tty4  where it has one, COMMAND's dialogue with the host
#   tty3  from the host: in base64, up to a dot: shell that sets what is used below (boot.py writes it)
#         to the host: `request`, then `ready`, then `exit STATUS`, or `error SENTENCE`
set -u
export PATH=/usr/sbin:/usr/bin:/sbin:/bin

forever() { while :; do sleep 100000; done; } # the host ends the VM
fail() { printf 'error %s\n' "$*" >&3; forever; }

mount -t devtmpfs dev /dev && exec </dev/null >/dev/console 2>&1 3<>/dev/tty3 || exit 1
# Waiting for the host would let virtual time race ahead, by minutes and never by the same: ask until it answers
# instead, without ever waiting. (The empty process lets the kernel's own threads have a turn.) And ask first: a console
# never notices what was sent before it was opened.
stty raw -echo min 0 time 0 <&3
echo request >&3
request=
until request=$request$(cat <&3) && [ "$request" != "${request%.}" ]; do (:); done # `read` would take it byte by byte
request=$(printf %s "${request%.}" | base64 -d) && eval "$request" || fail "the request from the host is damaged"

# Every mount below is made in the new root before it becomes the root: then nothing of the old one need stay visible.
# By one `mount` for all, as to start a program takes longer than what it does.
cd "${0%/*}" && # which may be below /tmp, and is hidden then
    mount -t tmpfs -o mode=755 tmpfs /tmp && mkdir /tmp/upper /tmp/work /tmp/root /tmp/host &&
    mount --all --fstab guest.fstab && cd /tmp/root && mkdir run/lock && mkdir -m 700 run/longhaul ||
    fail "the system folders could not be mounted"
ln -sf /proc/self/fd dev/fd && ln -sf fd/0 dev/stdin && ln -sf fd/1 dev/stdout && ln -sf fd/2 dev/stderr
if [ -n "$results" ]; then
    mount -t hostfs none /tmp/host && mkdir -p ".$results" && mount --bind "/tmp/host$results" ".$results" &&
        umount /tmp/host || fail "the results folder could not be mounted"
fi
pivot_root . . && umount -l . && cd / || fail "the overlay could not be made the root"

echo longhaul >/proc/sys/kernel/hostname
echo 1 >/proc/sys/vm/panic_on_oom # one sentence and an end, instead of an experiment that lost a random process
ulimit -n 65536
ip link set lo up
cd -- "$directory" || fail "the working directory $directory cannot be entered in the VM"

# The pumps end when the last writer does, and a daemon that COMMAND left behind may hold on for ever.
all_but() {
    left=
    for process in /proc/[0-9]*; do
        case " 1 $* " in *" ${process#/proc/} "*) continue ;; esac
        [ -e "$process/exe" ] && left="$left ${process#/proc/}" # the kernel's own threads have none
    done
    [ -n "$left" ]
}
stop_all_but() {
    while all_but "$@"; do kill -KILL $left; done 2>/dev/null
}

if [ "$terminal" = yes ]; then
    echo ready >&3
    (launch) </dev/tty1 >/dev/tty1 2>&1 3<&-
    status=$?
    stop_all_but
else
    exec 4<>/dev/tty1 && stty raw -echo <&4 && stty raw -echo </dev/tty2 && cd /run/longhaul && mkfifo -m 600 in out err ||
        fail "the streams could not be made"
    cat out >&4 3<&- & out=$!
    cat err >/dev/tty2 3<&- 4<&- & err=$!
    if [ "$stdin" = yes ]; then
        { while read -r length && [ "$length" -gt 0 ]; do head -c "$length"; done; } <&4 >in 3<&- &
        input=/run/longhaul/in
    else
        input=/dev/null
    fi
    cd -- "$directory"
    echo ready >&3
    (launch) <"$input" >/run/longhaul/out 2>/run/longhaul/err 3<&- 4<&-
    status=$?
    if [ "$stdin" = no ] && grep -q time-travel= /proc/cmdline; then
        # Time goes on once nothing can run: then the pumps have carried all that there was. What COMMAND left behind
        # ends with the VM; to take it down here would be a tenth of a short run's processor time.
        all_but "$out" "$err" && kill -STOP $left
        sleep 0.001
        kill -KILL "$out" "$err"
    else
        stop_all_but "$out" "$err"
    fi
    wait "$out" "$err"
    exec 4<&- # closing a console waits until the host has all of it
fi
[ -z "$results" ] || sync
echo "exit $status" >&3
forever
