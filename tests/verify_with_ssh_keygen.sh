#!/bin/sh
# Verifies a bundle without bench: with tar, ssh-keygen, sha256sum and grep alone.
#
#   verify_with_ssh_keygen.sh BUNDLE                              whoever signed it
#   verify_with_ssh_keygen.sh BUNDLE ALLOWED_SIGNERS PRINCIPAL    signed by this one
#
# It checks the signature and the sha256 of every file. It recomputes nothing from the samples.
set -eu

namespace=bench-bundle@v1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

tar -xOf "$1" statement.json >"$work/statement"
tar -xOf "$1" statement.json.sig >"$work/signature"

ssh-keygen -Y check-novalidate -n "$namespace" -s "$work/signature" <"$work/statement"
if [ $# -ge 3 ]; then
    ssh-keygen -Y verify -n "$namespace" -f "$2" -I "$3" -s "$work/signature" <"$work/statement"
fi

# The statement has one form only, so that each of its subjects can be searched for as text.
tar -tf "$1" | grep -vxF -e statement.json -e statement.json.sig >"$work/names"
while read -r name; do
    sha256=$(tar -xOf "$1" "$name" | sha256sum | cut -d ' ' -f 1)
    grep -qF "{\"digest\":{\"sha256\":\"$sha256\"},\"name\":\"$name\"}" "$work/statement" ||
        { echo "$name is not the file that was signed" >&2; exit 1; }
done <"$work/names"

signed=$(grep -oF '{"digest":{"sha256":"' "$work/statement" | wc -l)
[ "$signed" -eq "$(wc -l <"$work/names")" ] || { echo "a signed file is missing" >&2; exit 1; }
echo "$signed files are as signed"
