#!/bin/sh
# For bench check --on-change: send the finding, as JSON, to the URL that is the first argument, such as a
# webhook of a ticket system.
set -eu
exec curl --silent --show-error --fail --max-time 15 --header 'Content-Type: application/json' \
    --data-binary @- "$1"
