#!/bin/sh
# Verifies a bundle without bench: with tar, ssh-keygen, openssl and sha256sum; with cosign too, where it is.
#
#   verify.sh BUNDLE                     that nothing changed since somebody signed it
#   verify.sh BUNDLE ALLOWED_SIGNERS     that one of these people answers for it
#
# It checks both signatures, the run's certificate, the receipt, and the sha256 of every file.
# It recomputes nothing from the samples. ALLOWED_SIGNERS holds the two lines that `bench keys show` prints.
set -eu

[ $# -gt 0 ] || { echo "usage: verify.sh BUNDLE [ALLOWED_SIGNERS]" >&2; exit 2; }
bundle=$1 signers=${2-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
die() { echo "$1" >&2; exit 1; }
has() { grep -qxF "$1" "$work/names"; }
get() { tar -xOf "$bundle" "$1" >"$work/$1"; }
field() { sed -n "s/.*\"$2\":\"\{0,1\}\([^\",}]*\).*/\1/p" "$work/$1"; } # of a document in canonical JSON

tar -tf "$bundle" >"$work/names"
[ "$(sort -u "$work/names" | wc -l)" -eq "$(wc -l <"$work/names")" ] || die "a file stands in it twice"
for name in statement.json statement.json.sig; do get "$name"; done

# --- the statement is signed: SSHSIG, by a key or by a run's key with its certificate -----------------------
ssh-keygen -Y check-novalidate -n bench-bundle@v1 -s "$work/statement.json.sig" <"$work/statement.json"

# --- the operator received it: the receipt is signed by the key that certified the run's --------------------
received=now
if has receipt.json; then
    for name in receipt.json receipt.json.sig run-cert.pub; do get "$name"; done
    said=$(ssh-keygen -Y check-novalidate -n bench-receipt@v1 -s "$work/receipt.json.sig" <"$work/receipt.json")
    certifier=$(ssh-keygen -L -f "$work/run-cert.pub" | sed -n 's/.*Signing CA: [^ ]* \(SHA256:[^ ]*\).*/\1/p')
    [ "${said##* }" = "$certifier" ] || die "the receipt is signed by ${said##* }, not by $certifier"
    [ "$(field receipt.json statement_sha256)" = "$(sha256sum <"$work/statement.json" | cut -d ' ' -f 1)" ] ||
        die "the receipt is for another statement"
    [ "$(field receipt.json nonce)" = "$(field statement.json nonce)" ] || die "the receipt is for another challenge"
    received=$(date -u -d "@$(field receipt.json received_at)" +%Y%m%d%H%M%S)
fi

# --- somebody whom we trust answers for it -----------------------------------------------------------------
if [ -n "$signers" ]; then
    who=${BENCH_PRINCIPAL-}
    if has run-cert.pub; then
        who=bench-run:$(field statement.json run_id)
    elif [ -z "$who" ]; then
        who=$(ssh-keygen -Y find-principals -f "$signers" -s "$work/statement.json.sig" | head -n 1)
    fi
    at=$([ "$received" = now ] || echo "-Overify-time=$received")
    # shellcheck disable=SC2086  # $at is one word or none
    TZ=UTC ssh-keygen -Y verify -n bench-bundle@v1 -f "$signers" -I "$who" $at \
        -s "$work/statement.json.sig" <"$work/statement.json"
    if has receipt.json; then
        operator=$(ssh-keygen -Y find-principals -f "$signers" -s "$work/receipt.json.sig" | head -n 1)
        TZ=UTC ssh-keygen -Y verify -n bench-receipt@v1 -f "$signers" -I "$operator" "-Overify-time=$received" \
            -s "$work/receipt.json.sig" <"$work/receipt.json"
    fi
fi

# --- the same bytes in DSSE, signed by the same key --------------------------------------------------------
if has statement.dsse.json; then
    get statement.dsse.json
    if has run-cert.pub; then
        get run-cert.pub
        cut -d ' ' -f 2 "$work/run-cert.pub" | base64 -d | dd bs=1 skip=76 count=32 2>/dev/null >"$work/raw"
    else
        sed '1d;$d' "$work/statement.json.sig" | base64 -d | dd bs=1 skip=33 count=32 2>/dev/null >"$work/raw"
    fi
    { printf '\060\052\060\005\006\003\053\145\160\003\041\000'; cat "$work/raw"; } |
        openssl pkey -pubin -inform DER -out "$work/key.pem"
    field statement.dsse.json payload | base64 -d >"$work/payload"
    cmp "$work/payload" "$work/statement.json" || die "the envelope holds another statement"
    field statement.dsse.json sig | base64 -d >"$work/signature"
    { printf 'DSSEv1 28 application/vnd.in-toto+json %d ' "$(wc -c <"$work/payload")"; cat "$work/payload"; } >"$work/pae"
    openssl pkeyutl -verify -pubin -inkey "$work/key.pem" -rawin -in "$work/pae" -sigfile "$work/signature"
    if command -v cosign >/dev/null; then
        get results.json
        cosign verify-blob-attestation --key "$work/key.pem" --signature "$work/statement.dsse.json" \
            --type "$(field statement.json predicateType)" --insecure-ignore-tlog --offline "$work/results.json" 2>&1
    fi
fi

# --- the files are those of the statement. It has one form only, so that each can be searched for as text ---
grep -vxF -e statement.json -e statement.json.sig -e statement.dsse.json -e run-cert.pub \
    -e receipt.json -e receipt.json.sig "$work/names" >"$work/files"
while read -r name; do
    sha256=$(tar -xOf "$bundle" "$name" | sha256sum | cut -d ' ' -f 1)
    grep -qF "{\"digest\":{\"sha256\":\"$sha256\"},\"name\":\"$name\"}" "$work/statement.json" ||
        die "$name is not the file that was signed"
done <"$work/files"
signed=$(grep -oF '{"digest":{"sha256":"' "$work/statement.json" | wc -l)
[ "$signed" -eq "$(wc -l <"$work/files")" ] || die "a signed file is missing"
echo "$signed files are as signed"
