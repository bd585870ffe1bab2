#!/bin/sh
# The VM's init (process 1). Its root is the host's file system, read-only. It mounts an overlay over that, which is
# discarded with the VM, requests COMMAND from the host over tty3, runs it, and reports its exit status over tty3.
#   tty0  kernel messages    tty1  COMMAND's stdin (in frames) and stdout, or its terminal    tty2  COMMAND's stderr
#   tty4  COMMAND's dialogue with the host, if it has one
#   tty3  from the host: the number of bytes of what follows in a line, then shell code in base64, which sets the
#         variables used below (boot.py writes it)
#         to the host: `request`, then `ready`, then `exit STATUS`, or `error SENTENCE`
set -u
export PATH=/usr/sbin:/usr/bin:/sbin:/bin

forever() { while :; do sleep 100000; done; } # the host ends the VM
fail() { printf 'error %s\n' "$*" >&3; forever; }

mount -t devtmpfs dev /dev && exec </dev/null >/dev/console 2>&1 3<>/dev/tty3 || exit 1
# If all processes waited for the host, virtual time would race ahead, by a different number of minutes in each boot. So
# two pass a line in a circle: one of them can always run, and all others take their turns. To poll here by starting
# `cat` again and again made the numbers of processes, and the random numbers of all that followed, depend on how fast
# the host was. A request is sent first because a console does not notice input that was sent before it was opened.
stty raw -echo min 1 time 0 <&3
mkfifo /dev/circle || fail "the pipe of the busy processes could not be made"
cat </dev/circle | cat >/dev/circle & circle=$!
echo >/dev/circle && rm /dev/circle
echo request >&3
read -r length <&3 && request=$(head -c "$length" <&3)
kill -KILL "$circle" && wait "$circle"
request=$(printf %s "$request" | base64 -d) && eval "$request" || fail "the request from the host is damaged"

# All file systems are mounted inside the new root before it becomes the root, so that nothing of the old root has to
# stay visible. One `mount` mounts them all, because starting a program takes longer than its work.
cd "${0%/*}" && # first, because this folder may be below /tmp, which the next mount hides
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
[ -e /etc/machine-id ] || : >/etc/machine-id # hosts mount files of their own over it
echo 1 >/proc/sys/vm/panic_on_oom # end with an error, instead of going on with a process missing
for link in /sys/class/net/join*; do
    # What another machine sends needs memory at once, up to 500 kB a packet, and cannot wait for pages to be freed.
    [ -e "$link" ] && echo 65536 >/proc/sys/vm/min_free_kbytes && break
done
ulimit -n 65536
ip link set lo up
cd -- "$directory" || fail "the working directory $directory cannot be entered in the VM"
if [ -n "$date" ]; then date -u -s "$date" >/dev/null || fail "the date cannot be set"; fi

# The `cat`s below end only when the last process that writes to them ends, and a daemon of COMMAND may never end.
all_but() {
    left=
    for process in /proc/[0-9]*; do
        case " 1 $* " in *" ${process#/proc/} "*) continue ;; esac
        [ -e "$process/exe" ] && left="$left ${process#/proc/}" # kernel threads have no exe
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
        # The sleep ends once no process can run: then the `cat`s have copied all output. Processes that COMMAND left
        # are stopped here and end with the VM; to kill them here would take a tenth of a short run's processor time.
        all_but "$out" "$err" && kill -STOP $left
        sleep 0.001
        kill -KILL "$out" "$err"
    else
        stop_all_but "$out" "$err"
    fi
    wait "$out" "$err"
    exec 4<&- # closing a console waits until the host has read all of its output
fi
[ -z "$results" ] || sync
echo "exit $status" >&3
forever
