#!/bin/sh
# Debian's own chromium, for the tests that look at the report; does nothing where it is there already.
set -eu
command -v chromium >/dev/null && exit 0
exec 9>"${TMPDIR:-/tmp}/bench-apt.lock" # as tests/e2e/services.py: tests run side by side
flock 9
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -qy --no-install-recommends chromium fonts-dejavu-core
