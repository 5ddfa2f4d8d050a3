#!/usr/bin/env bash
# What a process holds outside of its plan, for plans of more than 4 GiB: run.sh PROGRAM
set -euo pipefail
program=$1
recipe=$(dirname "${BASH_SOURCE[0]}")/large_state.yaml
output=$(mktemp -d)
trap 'rm -rf "$output"' EXIT
for cut in "1 0" "2 3"; do
  read -r ranks stage <<<"$cut"
  printf '%s rank(s), stage %s\n' "$ranks" "$stage"
  "$program" train "$recipe" --ranks "$ranks" --set zero_optimization.stage="$stage" \
    --set run.output_dir="$output/$ranks" >"$output/log" || { tail -1 "$output/log"; exit 1; }
  sed -n '/ranks as planned/,$p' "$output/log"
done
