#!/usr/bin/env bash
# What CMake calls C++ compilers through: compile.sh [CCACHE] COMPILER ARGS…
#
# A batch (cmake/batches.cmake) doesn't compile if two of its files use one name for two things, which
# batches.py may overlook or which an edit brings. Its files are compiled one by one then, and their
# objects are joined into the one that was asked for. What doesn't compile alone is an error.
set -u

source='' output='' list=''
for ((i = 1; i <= $#; ++i)); do
  case ${!i} in
    -c) next=$((i + 1)) source=${!next} ;;
    -o) next=$((i + 1)) output=${!next} ;;
    -MF) next=$((i + 1)) list=${!next} ;;
  esac
done
case $source in
  */batches/*) ;;
  *) exec "$@" ;;
esac
status=0
"$@" 2>"$output.log" || status=$?
if [ $status = 0 ] || grep -qv '^#include "' "$source"; then
  cat "$output.log" >&2
  rm -f "$output.log"
  exit $status
fi
rm -f "$output.log"

root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
compiler=()
for arg in "$@"; do
  case $arg in -*) break ;; esac
  compiler+=("$arg")
done
mapfile -t files < <(sed -n 's/^#include "\(.*\)"$/\1/p' "$source")
parts=() lists=()
for file in "${files[@]}"; do
  part=$output.${#parts[@]}.o
  args=()
  for arg in "$@"; do
    case $arg in
      "$source") args+=("$root/$file") ;;
      "$output") if [ "${args[-1]}" = -o ]; then args+=("$part"); else args+=("$arg"); fi ;;
      "$list") args+=("$part.d") ;;
      *) args+=("$arg") ;;
    esac
  done
  "${args[@]}" || exit
  parts+=("$part") lists+=("$part.d")
done
"${compiler[@]}" -r -nostdlib -o "$output" "${parts[@]}" || exit
[ -z "$list" ] || cat "${lists[@]}" >"$list"
rm -f "${parts[@]}" "${lists[@]}"
