#!/bin/sh
# For bench check --on-change: cordon this node in Kubernetes while it fails or cannot be checked, and
# uncordon it once it passes. A node that somebody else cordoned stays as it is.
set -eu
node=${NODE_NAME:-$(hostname)}
ours=$(kubectl get node "$node" --output='jsonpath={.metadata.annotations.bench/reason}')
cordoned=$(kubectl get node "$node" --output='jsonpath={.spec.unschedulable}')
case "$BENCH_TO" in
pass)
    [ -n "$ours" ] || exit 0
    kubectl uncordon "$node"
    kubectl annotate node "$node" bench/reason-
    ;;
*)
    [ "$cordoned" != true ] || [ -n "$ours" ] || exit 0
    kubectl annotate --overwrite node "$node" "bench/reason=$BENCH_REASON"
    kubectl cordon "$node"
    ;;
esac
