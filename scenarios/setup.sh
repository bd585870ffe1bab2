#!/usr/bin/env bash
# Makes a fresh Debian 12, Debian 13 or Ubuntu 24.04 ready for Longhaul, and does nothing where all is in place.
#   bash scenarios/setup.sh            `bash scenarios/setup.sh bare` also installs what `pytest -m bare` takes
# Root (or sudo) is used for apt alone. The rest is yours: .venv in the project, the VM's kernel in ~/.cache/longhaul.
# A machine that cannot have the VM gets everything else: status 0, and a sentence on what is missing and what mends it.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

[ "$(uname -m)" = x86_64 ] || { say "the VM's kernel runs on x86_64 machines only, and this one is $(uname -m)"; exit 3; }
command -v apt-get >/dev/null || { say "this machine has no apt: Debian 12, Debian 13 and Ubuntu 24.04 are supported"; exit 3; }

# --- packages ------------------------------------------------------------------------------------------------------
# The network, the prompt's tools, Python, and what builds a kernel.
packages=(openvswitch-switch mininet iproute2 iptables ethtool iputils-ping iperf tcpdump net-tools procps util-linux python3
    python3-venv
    python-is-python3 gcc libc6-dev make flex bison bc patch tar xz-utils bzip2 git)
# The library of RDMA with its drivers, and the programs that try it.
packages+=(ibverbs-providers ibverbs-utils rdmacm-utils perftest)
# What opens a report in its test; Ubuntu has it as a snap alone, and that test is skipped there.
grep -qx ID=ubuntu /etc/os-release || packages+=(chromium)
case ${1-} in
    '') ;;
    bare) packages+=(debootstrap vagrant vagrant-libvirt iperf3) ;;
    *) say "$1 is no part of set-up; allowed: nothing, or bare"; exit 2 ;;
esac

installed() { dpkg-query -W -f='${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed; }
root() {
    if [ "$(id -u)" = 0 ]; then "$@"
    elif command -v sudo >/dev/null; then sudo -- "$@"
    else die "packages are missing (${missing[*]}): install them as root, or install sudo"
    fi
}
lacking() {
    missing=()
    for package in "${packages[@]}"; do installed "$package" || missing+=("$package"); done
}
# 6.12 is the version that Longhaul was proven on; a distribution without it has a newer or an older one.
kernel_source() {
    local names
    names=$(apt-cache search --names-only '^linux-source-[0-9.]+$' | cut -d' ' -f1 | sort -V)
    grep -x linux-source-6.12 <<<"$names" || tail -n 1 <<<"$names"
}
have_source() { compgen -G '/usr/src/linux-source-*.tar.*' >/dev/null; }

lacking
if [ ${#missing[@]} -gt 0 ] || ! have_source; then
    say "updating the package lists"
    root apt-get update -qq || die "apt-get update failed"
    if ! have_source; then
        source=$(kernel_source)
        [ -z "$source" ] || missing+=("$source")
    fi
    if [ ${#missing[@]} -gt 0 ]; then
        say "installing ${missing[*]}"
        root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2 ||
            die "apt-get install failed"
    fi
    lacking
    [ ${#missing[@]} -eq 0 ] || die "apt installed everything but ${missing[*]}"
fi

# --- Python --------------------------------------------------------------------------------------------------------
# The distribution's Python, because Mininet's module comes with the distribution.
python=/usr/bin/python3
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "$("$python" --version) is too old: 3.11 is needed"
wanted=$(cat pyproject.toml scenarios/setup.sh <("$python" --version) | sha256sum)
if [ "$(cat .venv/longhaul.stamp 2>/dev/null)" != "$wanted" ]; then
    say "installing Longhaul and its Python packages into .venv"
    "$python" -m venv --clear .venv || die "the virtual environment .venv could not be made"
    # As a plain path: the finder that pip would install else imports more than all of Python's own start-up.
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat \
        -e '.[dev]' >&2 || die "pip install failed"
    packages_folder=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    ln -sfn /usr/lib/python3/dist-packages/mininet "$packages_folder/mininet"
    .venv/bin/python -c 'import mininet.net' || die "Mininet's Python module could not be loaded"
    printf '%s\n' "$wanted" >.venv/longhaul.stamp
fi
# Byte code in place: the VM, whose files are thrown away, would compile every module at every boot.
.venv/bin/python -m compileall -q topologies controller hosts scenarios analysis || die "a module does not compile"
compiled=(analysis/model/__pycache__/fluid_jit.run*.nbi)
[ "${compiled[0]}" -nt analysis/model/fluid_jit.py ] || say "compiling the model of flows that share links, and policies"
# Side by side, as each takes one core; the two halves of the model of flows take as long as all others.
modules=("analysis.model.fluid completion_s fair_rates" "analysis.model.fluid runs" hosts.embedding.search
    scenarios.policies.players)
compilers=()
trap 'kill $(jobs -pr) 2>/dev/null || true' EXIT
for module in "${modules[@]}"; do
    .venv/bin/python -m $module & # and its arguments
    compilers+=($!)
done
for index in "${!modules[@]}"; do
    wait "${compilers[index]}" || die "${modules[index]%% *} does not compile"
done
trap - EXIT

# --- the VM's kernel -----------------------------------------------------------------------------------------------
without_vm() { # WHY STATUS
    [ "$2" -lt 128 ] || exit "$2" # interrupted
    say "everything but the VM is ready, and until it runs, run.py runs the model and measures nothing: $1"
    exit 0
}
have_source || without_vm "this distribution has no package linux-source-*; enable its main archive and run set-up again" 1
kernel=$(.venv/bin/python -m scenarios.vm.build) ||
    without_vm "its kernel could not be built for the reason above; mend that and run set-up again" $?
copy=.venv/lib/longhaul/$(basename "$(dirname "$kernel")")/linux # for root and others, whose caches are not yours
cmp -s "$kernel" "$copy" || { rm -rf .venv/lib/longhaul && install -D -m 755 "$kernel" "$copy"; }
why=$(timeout --foreground 120 .venv/bin/python -m scenarios.vm -- true 2>&1) || { # a boot takes less than a second
    status=$?
    [ "$status" -ne 124 ] || why="it did not boot within 120 s"
    without_vm "${why#longhaul: }" "$status"
}
say "ready"
