#!/bin/sh
# Unpacks Debian 13's cosign into a folder, from whatever Debian mirror this machine uses; prints where it is.
# Its one binary needs nothing of Debian 13's.
set -eu

mkdir -p "$1"
folder=$(cd "$1" && pwd)
cosign=$folder/root/usr/bin/cosign
[ -x "$cosign" ] && { echo "$cosign"; exit; }

mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
    grep -v '^ *#' | grep -oE '[a-z+]+://[^ ]+/debian/?( |$)' | head -n 1)
[ -n "$mirror" ] || { echo "no Debian mirror in this machine's apt sources" >&2; exit 1; }
mkdir -p "$folder/lists/partial" "$folder/archives/partial" "$folder/parts"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${mirror% } trixie main" >"$folder/sources.list"
apt() {
    apt-get -q -o "Dir::Etc::sourcelist=$folder/sources.list" -o "Dir::Etc::sourceparts=$folder/parts" \
        -o "Dir::State::lists=$folder/lists" -o "Dir::Cache=$folder" -o APT::Sandbox::User=root "$@" >&2
}
cd "$folder"
apt update
apt download cosign
dpkg-deb -x cosign_*.deb root
"$cosign" version >&2
echo "$cosign"
