#!/bin/sh
# Install those Debian packages that are missing for the named programs, or for all programs of end-to-end tests.
#
# They come in one transaction: each apt-get reads the lists of all packages, and all others wait for its lock.
set -eu

# A program, and what brings it and lets it work.
table='
buildah buildah
catatonit catatonit
chromium chromium fonts-dejavu-core
docker-registry docker-registry
dockerd docker.io
dpkg-deb dpkg
fio fio
gpg gpg
ip iproute2
iptables iptables
kubectl kubernetes-client
lintian lintian
mmdebstrap mmdebstrap
munged munge
nmap nmap
node nodejs
npm npm
openssl openssl
podman podman
promtool prometheus
sbatch slurm-client
skopeo skopeo
slurmctld slurmctld
slurmd slurmd
ssh-keygen openssh-client
sshd openssh-server
systemd-analyze systemd
tc iproute2
wg wireguard-tools
wireguard-go wireguard-go
'

PATH=$PATH:/usr/sbin:/sbin # a user's PATH may lack the folders of daemons
exec 9>"${TMPDIR:-/tmp}/bench-apt.lock"
flock 9 # before programs are looked for: one is there before another test has installed what it needs

missing=
for program in ${*:-$(echo "$table" | cut -d ' ' -f 1)}; do
    packages=$(echo "$table" | sed -n "s/^$program //p")
    [ -n "$packages" ] || { echo "$0: no package is known for $program" >&2; exit 2; }
    command -v "$program" >/dev/null || missing="$missing $packages"
done
[ -n "$missing" ] || exit 0

export DEBIAN_FRONTEND=noninteractive
apt() { # without the lock, which a daemon that a package starts would keep
    apt-get -qq -o DPkg::Lock::Timeout=600 "$@" 9>&- >&2
}
apt update
# Files need not be on the disk at once: if the machine loses its power, the tests begin again anyway.
apt install -y --no-install-recommends -o DPkg::Options::=--force-unsafe-io $missing
