#!/usr/bin/env bash
# build.sh NAME FOLDER [ROOM…]: builds the committed state of this checkout in a bare Debian NAME (bookworm, trixie), with
# warnings as errors, and puts its .deb and its wheel into FOLDER. The tests of each ROOM (core, kernels, …) are built
# and run there, too. As root; takes as long as a build. Exit code 77: no root can be made here.
#
#   SHERD_CCACHE=FOLDER   what was compiled there before (made if it isn't there)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/root.sh"
[ $# -ge 2 ] || { echo "build: NAME FOLDER [ROOM…]" >&2; exit 2; }
need_roots
source=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
name=$1 to=$(realpath -m "$2") rooms=("${@:3}")
mkdir -p "$to"
folder=$(mktemp -d)
trap 'remove_root; rm -rf "$folder"' EXIT

say "a bare $name"
make_root "$name" "$folder/system" ca-certificates,git
git -c safe.directory="$source" clone -q --no-hardlinks "$source" "$system/root/sherd"
if [ -n "${SHERD_CCACHE:-}" ]; then
  mkdir -p "$SHERD_CCACHE"
  bind "$(realpath "$SHERD_CCACHE")" /root/.cache/ccache
fi
there() { in_root root "cd sherd && export SHERD_WERROR=1 && $*"; }

say "the program and its .deb"
there ./dev deps
there 'apt-get install -y -q -q --no-install-recommends dpkg-dev file >/dev/null'  # cpack finds libraries' packages
there 'g++ --version | head -n 1 && ./dev build cpu sherd sherd_library && cd build/cpu && cpack'
cp "$system"/root/sherd/build/cpu/sherd_*.deb "$to"

say "the wheel"
there ./dev wheel
cp "$system"/root/sherd/build/wheels/sherd-*.whl "$to"

for room in "${rooms[@]}"; do
  say "tests of $room"
  there "./dev build cpu ${room}_tests && ctest --test-dir build/cpu --output-on-failure -R '^$room\$'"
done
say "passed: $(cd "$to" && echo sherd*)"
