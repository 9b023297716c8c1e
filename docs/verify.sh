#!/bin/sh
# Verifies a bundle without bench: with tar, ssh-keygen, openssl and sha256sum; with cosign too, where it is.
#
#   verify.sh BUNDLE                     that nothing changed since somebody signed it
#   verify.sh BUNDLE ALLOWED_SIGNERS     that one of these people answers for it
#   verify.sh BUNDLE ALLOWED_SIGNERS KRL and that nothing of it is revoked there
#
# It checks the container, both signatures, the run's certificate, the receipt, and the sha256 of every file.
# It recomputes nothing from the samples. ALLOWED_SIGNERS holds the two lines that `bench keys show` prints.
set -eu

[ $# -gt 0 ] || { echo "usage: verify.sh BUNDLE [ALLOWED_SIGNERS [KRL]]" >&2; exit 2; }
bundle=$1 signers=${2-} krl=${3-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
die() { echo "$1" >&2; exit 1; }
has() { grep -qxF "$1" "$work/names"; }
get() { tar -xOf "$bundle" "$1" >"$work/$1"; }
field() { sed -n "s/.*\"$2\":\"\{0,1\}\([^\",}]*\).*/\1/p" "$work/$1"; } # of a document in canonical JSON
hex() { od -An -v -tx1 | tr -d ' \n'; }
str() { printf '%08x%s' $((${#1} / 2)) "$1"; } # a string of SSH's wire format, in hex
word() { str "$(printf %s "$1" | hex)"; }

# --- a plain tar of regular files, each a header and its bytes, and nothing else ----------------------------
[ "$(dd if="$bundle" bs=1 skip=257 count=5 2>/dev/null)" = ustar ] || die "is no plain tar"
TZ=UTC LC_ALL=C tar --numeric-owner -tvf "$bundle" >"$work/list"
grep -qv '^-rw-r--r-- 0/0 *[0-9]* 1970-01-01 00:00 [a-z0-9][a-z0-9._/-]*$' "$work/list" &&
    die "holds something else than regular files of nobody"
size=$(awk '{ n += 512 + 512 * int(($3 + 511) / 512) } END { print n + 1024 }' "$work/list")
[ "$size" -eq "$(wc -c <"$bundle")" ] || die "holds something between the files or after them"
tar -tf "$bundle" >"$work/names"
[ "$(sort -u "$work/names" | wc -l)" -eq "$(wc -l <"$work/names")" ] || die "a file stands in it twice"
for name in statement.json statement.json.sig; do get "$name"; done

# --- the statement is signed: SSHSIG, by a key or by a run's key with its certificate -----------------------
ssh-keygen -Y check-novalidate -n bench-bundle@v1 -s "$work/statement.json.sig" <"$work/statement.json"
run=$(field statement.json run_id) nonce=$(field statement.json nonce)

# --- the certificate is that of the signature, and for this run, this challenge and nothing else ------------
sshsig=$(printf SSHSIG | hex)00000001
sed '1d;$d' "$work/statement.json.sig" | base64 -d | hex >"$work/signed"
if has run-cert.pub; then
    get run-cert.pub
    cut -d ' ' -f 2 "$work/run-cert.pub" | base64 -d >"$work/certificate"
    grep -qF "$sshsig$(str "$(hex <"$work/certificate")")" "$work/signed" ||
        die "run-cert.pub is not the certificate of the signature"
    options=$(word bench-namespace@v1)$(str "$(word bench-bundle@v1)")
    options=$options$(word bench-nonce@v1)$(str "$(word "$nonce")")
    for_run=00000001$(word "bench run $run")$(str "$(word "bench-run:$run")")
    valid=$(hex <"$work/certificate" | sed -n "s/.*$for_run\(.\{32\}\)$(str "$options")0000000000000000.*/\1/p")
    [ -n "$valid" ] || die "the certificate is not for this run and this challenge alone"
    valid_after=$((0x${valid%????????????????})) valid_before=$((0x${valid#????????????????}))
else
    case $nonce in null | '') ;; *) die "the statement says level operator, and has no certificate" ;; esac
    grep -qF "$sshsig$(printf %08x 51)$(word ssh-ed25519)" "$work/signed" ||
        die "the certificate of the signature is missing"
fi

# --- the operator received it: the receipt is signed by the key that certified the run's --------------------
received=now
if has receipt.json; then
    has run-cert.pub || die "a receipt for a run that nobody certified"
    for name in receipt.json receipt.json.sig; do get "$name"; done
    said=$(ssh-keygen -Y check-novalidate -n bench-receipt@v1 -s "$work/receipt.json.sig" <"$work/receipt.json")
    certifier=$(ssh-keygen -L -f "$work/run-cert.pub" | sed -n 's/.*Signing CA: [^ ]* \(SHA256:[^ ]*\).*/\1/p')
    [ "${said##* }" = "$certifier" ] || die "the receipt is signed by ${said##* }, not by $certifier"
    [ "$(field receipt.json statement_sha256)" = "$(sha256sum <"$work/statement.json" | cut -d ' ' -f 1)" ] ||
        die "the receipt is for another statement"
    [ "$(field receipt.json nonce)" = "$nonce" ] || die "the receipt is for another challenge"
    [ "$(field receipt.json run_id)" = "$run" ] || die "the receipt is for another run"
    [ "$(field receipt.json certificate_sha256)" = "$(sha256sum <"$work/certificate" | cut -d ' ' -f 1)" ] ||
        die "the receipt is for another certificate"
    at=$(field receipt.json received_at)
    [ "$(field receipt.json challenged_at)" -le "$at" ] || die "the receipt contradicts itself"
    { [ "$valid_after" -le "$at" ] && [ "$at" -lt "$valid_before" ]; } ||
        die "it was received when the certificate was not valid yet, or had expired"
    received=$(date -u -d "@$at" +%Y%m%d%H%M%S)
elif has receipt.json.sig; then
    die "receipt.json is missing"
fi

# --- somebody whom we trust answers for it -----------------------------------------------------------------
if [ -n "$signers" ]; then
    who=${BENCH_PRINCIPAL-}
    if has run-cert.pub; then
        who=bench-run:$run
    elif [ -z "$who" ]; then
        who=$(ssh-keygen -Y find-principals -f "$signers" -s "$work/statement.json.sig" | head -n 1)
    fi
    at=$([ "$received" = now ] || echo "-Overify-time=$received")
    # shellcheck disable=SC2086  # $at is one word or none
    TZ=UTC ssh-keygen -Y verify -n bench-bundle@v1 -f "$signers" -I "$who" $at \
        ${krl:+-r "$krl"} -s "$work/statement.json.sig" <"$work/statement.json"
    if has receipt.json; then
        operator=$(ssh-keygen -Y find-principals -f "$signers" -s "$work/receipt.json.sig" | head -n 1)
        TZ=UTC ssh-keygen -Y verify -n bench-receipt@v1 -f "$signers" -I "$operator" "-Overify-time=$received" \
            ${krl:+-r "$krl"} -s "$work/receipt.json.sig" <"$work/receipt.json"
    fi
fi

# --- the same bytes in DSSE, signed by the same key --------------------------------------------------------
if has statement.dsse.json; then
    get statement.dsse.json
    if has run-cert.pub; then
        dd if="$work/certificate" bs=1 skip=76 count=32 2>/dev/null >"$work/raw"
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
elif [ "$(field statement.json schema)" != bench/run/v1 ]; then
    die "statement.dsse.json is missing"
fi

# --- the files are those of the statement. It has one form only, so that each can be searched for as text ---
grep -vxF -e statement.json -e statement.json.sig -e statement.dsse.json -e run-cert.pub \
    -e receipt.json -e receipt.json.sig "$work/names" >"$work/files"
sed 's/.*"subject":\[//' "$work/statement.json" >"$work/subjects"
while read -r name; do
    sha256=$(tar -xOf "$bundle" "$name" | sha256sum | cut -d ' ' -f 1)
    grep -qF "{\"digest\":{\"sha256\":\"$sha256\"},\"name\":\"$name\"}" "$work/subjects" ||
        die "$name is not the file that was signed"
done <"$work/files"
signed=$(grep -oF '{"digest":{"sha256":"' "$work/subjects" | wc -l)
[ "$signed" -eq "$(wc -l <"$work/files")" ] || die "a signed file is missing"
echo "$signed files are as signed"
