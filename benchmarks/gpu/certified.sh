#!/usr/bin/env bash
# Does a machine without a network and without a container engine give a certified figure?
#   [CARRIED=DIR] [PYTHON=FILE] [MANIFEST=FILE] benchmarks/gpu/certified.sh OUT [MORE OPTIONS OF bench push]
# Operator and node are this machine, as root: an SSH server on loopback, a key that the operator trusts, and
# `bench push --engine venv`, which takes from PYTHON what that has of the lock, and sends the rest from CARRIED.
# DIR has wheels, at any depth, and ssh.tar.gz: sshd, ssh and ssh-keygen in ssh/bin, their libraries in ssh/lib, for
# a machine without them (of Debian's packages, unpacked by `dpkg -x`; see benchmarks/gpu/README.md).
# OUT gets the bundle, the operator's public keys, its ledger, the environment's description, and what was printed.
# VARIANT names the lock (cuda13). Exit code 0: certified and verified.
set -euo pipefail
out=$(realpath -m "${1:?usage: certified.sh OUT [MORE OPTIONS OF bench push]}")
shift
here=$(cd "$(dirname "$0")/../.." && pwd)
carried=$(realpath -m "${CARRIED:-$here/.carried}") python=${PYTHON:-$(command -v python3)}
manifest=${MANIFEST:-$here/benchmarks/gpu/certified.json}
work=$(mktemp -d) server='' node_home=$(eval echo ~root)
trap '[ -z "$server" ] || kill "$server"; rm -rf "$work"' EXIT
mkdir -p "$out" "$work/home" "$work/wheels"
exec > >(tee "$out/printed.txt") 2>&1
export HOME=$work/home XDG_CONFIG_HOME=$work/home/.config XDG_STATE_HOME=$work/home/.state XDG_CACHE_HOME=$work/cache
export PYTHONPATH=$here:$work/operator-site PYTHONDONTWRITEBYTECODE=1

step() { echo "== $(date +%T) $*"; }
bench() { "$python" -P -m bench "$@"; }
timed() { # COMMAND...: show what a command prints, each line with its time
    "$@" 2>&1 | while IFS= read -r line; do printf '%(%T)T %s\n' -1 "$line"; done
}

step "machine: $(. /etc/os-release && echo "$PRETTY_NAME"), $("$python" --version), $(getconf GNU_LIBC_VERSION), $python"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || echo "no GPU answers"
echo "Docker, Podman, Apptainer: $(command -v docker podman apptainer || echo none)"
find "$carried" -name '*.whl' -exec ln -sf {} "$work/wheels/" \; 2>/dev/null || true
echo "carried: $(find "$work/wheels" -name '*.whl' | wc -l) wheels"

# What the operator's side imports comes from the wheels if the machine's Python lacks it.
if ! "$python" -P -c 'import cryptography, jsonschema, packaging, rich, tabulate' 2>/dev/null; then
    for name in attrs jsonschema jsonschema_specifications referencing rpds_py typing_extensions packaging tabulate \
        rich markdown_it_py mdurl pygments cryptography cffi pycparser bcrypt; do
        for wheel in "$work/wheels/$name"-*.whl; do
            [ ! -e "$wheel" ] || "$python" -P -m zipfile -e "$wheel" "$work/operator-site"
        done
    done
    echo "the operator's packages are carried"
fi

step "SSH server and client"
if ! { command -v sshd || [ -x /usr/sbin/sshd ]; } >/dev/null || ! command -v ssh ssh-keygen >/dev/null; then
    tar -xzf "$carried/ssh.tar.gz" -C "$work"
    mkdir -p "$work/bin"
    for name in sshd ssh ssh-keygen; do
        printf '#!/bin/sh\nLD_LIBRARY_PATH=%s/ssh/lib exec %s/ssh/bin/%s "$@"\n' "$work" "$work" "$name" > "$work/bin/$name"
        chmod +x "$work/bin/$name"
    done
    login_path=$PATH PATH=$work/bin:$PATH
    # Without it, sshd starts no child that is separated from its privileges.
    grep -q '^sshd:' /etc/passwd || echo 'sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin' >> /etc/passwd
    sshd=$work/ssh/bin/sshd libraries=$work/ssh/lib
else
    login_path=$PATH sshd=$(command -v sshd || echo /usr/sbin/sshd) libraries=
fi
mkdir -p /run/sshd
ssh -V
for name in host login; do ssh-keygen -q -t ed25519 -N '' -f "$work/$name"; done
port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
cat > "$work/sshd_config" <<CONFIG
ListenAddress 127.0.0.1:$port
HostKey $work/host
AuthorizedKeysFile $work/login.pub
PidFile none
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
StrictModes no
LogLevel ERROR
SetEnv PATH="$login_path"${CUDA_VISIBLE_DEVICES:+ CUDA_VISIBLE_DEVICES="$CUDA_VISIBLE_DEVICES"}${LD_LIBRARY_PATH:+ LD_LIBRARY_PATH="$LD_LIBRARY_PATH"} HOME="$node_home"
CONFIG
cat > "$work/ssh_config" <<CONFIG
Host *
  IdentityFile $work/login
  IdentitiesOnly yes
  UserKnownHostsFile $work/known_hosts
CONFIG
echo "[127.0.0.1]:$port $(cut -d' ' -f1,2 "$work/host.pub")" > "$work/known_hosts"
LD_LIBRARY_PATH=${libraries:-${LD_LIBRARY_PATH:-}} "$sshd" -D -e -f "$work/sshd_config" 2> "$work/sshd.log" &
server=$!
for _ in $(seq 50); do
    if ssh -F "$work/ssh_config" -p "$port" root@127.0.0.1 true 2> "$work/ssh.log"; then break; fi
    kill -0 "$server" && sleep 0.2
done
ssh -F "$work/ssh_config" -p "$port" root@127.0.0.1 true || { cat "$work/sshd.log"; exit 1; }

step "operator's key"
bench keys new --no-passphrase "$work/operator"
bench keys trust "$work/operator.pub" --as operator
cp "$XDG_CONFIG_HOME/bench/allowed_signers" "$out/allowed_signers"

step "what this Python has of the lock"
cd "$here"
"$python" -P - "${VARIANT:-cuda13}" <<'PY'
import os, sys
from bench.environment import adopt
from bench.environment.contents import LockedPackage
from bench.images.variants import find_variant
from bench.push.locked_environment import read_locked

locked = read_locked(None, find_variant(sys.argv[1]), "%d.%d" % sys.version_info[:2], None)
wanted = [LockedPackage(p.name, p.version, p.sha256, frozenset(locked.contents(p.name))) for p in locked.packages.values()]
here, differing = adopt.find(wanted, adopt.folders_of_packages(os.environ["PATH"]))
for name in locked.packages:
    print(f"  {name:32}", f"{here[name].bytes:>14,} bytes" if name in here else differing.get(name, "not installed"))
PY

push() {
    bench push "$manifest" "root@127.0.0.1:$port" --ssh-config "$work/ssh_config" --name certified \
        --engine venv --variant "${VARIANT:-cuda13}" --python "$python" --wheelhouse "$work/wheels" --source "$here" --key "$work/operator" \
        --out "$work/results" --keep "$@"
}
step "what the push would do"
timed push --dry-run "$@" || true
step "challenge, run, certificate, receipt"
pushed=0
timed push "$@" || pushed=$?
cp "$work"/results/*.tar "$out/" || { cat "$work/sshd.log"; exit 1; }
step "what a third party checks"
timed bench verify --trust "$out/allowed_signers" "$out"/*.tar
bench show "$out"/*.tar
tar -C "$work/home" -czf "$out/operator.tar.gz" .state
cp "$node_home"/.bench/environments/*/environment.json "$out/"
step "the same push again, which finds the environment there"
timed push --new --dry-run "$@" || true
exit "$pushed"
