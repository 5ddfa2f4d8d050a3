#!/usr/bin/env bash
# container.sh PACKAGE: takes the steps of recipes/cluster/Containerfile and of sherd.def in a bare Debian 12, with PACKAGE
# (a .deb built on Debian 12), and trains there in two processes. No container engine is needed. As root. Exit code 77:
# no root can be made here.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/root.sh"
[ $# -eq 1 ] || { echo "container: PACKAGE" >&2; exit 2; }
need_roots
files=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../../recipes/cluster")
folder=$(mktemp -d)
trap 'remove_root; rm -rf "$folder"' EXIT

# The commands of RUN, and those of %post.
run_of() { sed -e ':line' -e '/\\$/{N;s/\\\n//;b line}' "$1" | sed -n 's/^RUN //p'; }
post_of() { sed -n '/^%post$/,/^%runscript$/p' "$1" | sed '/^%/d'; }

for file in Containerfile sherd.def; do
  say "$file"
  make_root bookworm "$folder/system"
  cp "$1" "$system/tmp"
  case $file in
    Containerfile) run_of "$files/$file" ;;
    *) echo 'set -e' && post_of "$files/$file" ;;
  esac >"$system/steps.sh"
  grep -q 'apt-get install .*sherd' "$system/steps.sh" || fail "$file has no step that installs sherd"
  in_root root sh -e /steps.sh '>/dev/null'
  ! chroot "$system" sh -c 'ls /tmp/sherd*' 2>/dev/null || fail "the package stayed in the image"
  in_root root 'sherd --help >/dev/null && sherd --version'
  in_root root 'sherd init --quickstart && sherd launch -n 2 -- train recipe.yaml --set training.max_steps=3' \
    '--set lr_scheduler.warmup_steps=1' |
    tee "$folder/said"
  grep -q '^step 3/3 ' "$folder/said" || fail "no third step"
  [ "$file" != Containerfile ] || in_root root 'ssh-keygen -A >/dev/null && /usr/sbin/sshd -t'  # mpijob.yaml starts it
  remove_root
done
say passed
