#!/bin/sh
# Debian's own chromium, for the tests that look at the report; does nothing where it is there already.
set -eu
exec 9>"${TMPDIR:-/tmp}/bench-apt.lock" # as tests/e2e/services.py: tests run side by side
flock 9 # before the program is looked for: another test may be in the middle of installing it
command -v chromium >/dev/null && exit 0
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -qy --no-install-recommends chromium fonts-dejavu-core
