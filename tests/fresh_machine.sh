#!/usr/bin/env bash
# fresh_machine.sh [--short] [--ccache FOLDER] [FOLDER]: the README's two commands on a Debian 12 that
# has nothing installed, as root and as a user without sudo. Run by hand, as root, and before a
# release; it takes as long as a build and the tests.
#
#   FOLDER            where the system is made (3 GB; default: a temporary one); removed at the end
#   --short           only installs, builds the program and runs `./dev sherd info`
#   --ccache FOLDER   what this machine has compiled already; SHERD_WERROR and LANG, which ccache looks at,
#                     are then those of this shell
#
# The system is a chroot made by debootstrap, from the place that this machine's own apt uses and with
# apt's own settings. What is tested is the committed state of this checkout.
set -euo pipefail
source=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
short='' ccache='' folder=''
while [ $# -gt 0 ]; do
  case $1 in
    --short) short=yes ;;
    --ccache) ccache=$(realpath "$2"); shift ;;
    -*) echo "fresh_machine: there is no option $1" >&2; exit 2 ;;
    *) folder=$(realpath -m "$1") ;;
  esac
  shift
done
[ "$(id -u)" -eq 0 ] || { echo "fresh_machine: needs root, for debootstrap and chroot" >&2; exit 2; }
command -v debootstrap >/dev/null || { echo "fresh_machine: apt-get install debootstrap" >&2; exit 2; }
[ -n "$folder" ] || folder=$(mktemp -d)
[ ! -e "$folder/etc" ] || { echo "fresh_machine: $folder has a system in it already" >&2; exit 2; }
system=$folder/system

mounts=()
bind() { mkdir -p "$system$2" && mount --bind "$1" "$system$2" && mounts=("$system$2" "${mounts[@]}"); }
clean_up() {
  local place
  for place in "${mounts[@]}"; do
    for _ in {1..50}; do  # what was stopped in there may still be ending
      if umount -q "$place"; then continue 2; fi
      sleep 0.2
    done
    umount "$place" || exit 1  # nothing of this machine is removed below
  done
  rm -rf "$system"
  rmdir "$folder" 2>/dev/null || true
}
trap clean_up EXIT
say() { printf '\n== %s (%s)\n' "$*" "$(date +%T)"; }
fail() { printf 'fresh_machine: FAILED: %s\n' "$*" >&2; exit 1; }

say "a bare Debian 12"
place=$(apt-get indextargets --format '$(CODENAME) $(REPO_URI)' 'Created-By: Packages' |
  awk '$1 == "bookworm" { print $2; exit }')
[ -n "$place" ] || fail "this machine's apt knows no place for Debian 12 (bookworm)"
mkdir -p "$system"
debootstrap --variant=minbase --include=ca-certificates bookworm "$system" "$place" >"$folder/log" ||
  { tail -n 20 "$folder/log" >&2; fail "debootstrap"; }
rm "$folder/log"
rm -f "$system/etc/apt/sources.list"
for settings in etc/apt/{sources.list,sources.list.d,apt.conf.d,preferences.d,trusted.gpg,trusted.gpg.d,keyrings} \
  etc/ssl/certs usr/share/keyrings usr/local/share/ca-certificates; do
  [ ! -e "/$settings" ] || { mkdir -p "$(dirname "$system/$settings")" && cp -aT "/$settings" "$system/$settings"; }
done
cp -L /etc/resolv.conf /etc/hosts "$system/etc/"
bind /proc /proc
bind /sys /sys
# Devices of its own: removing the folder by hand would otherwise remove this machine's.
own() { mkdir -p "$system$1" && mount -t "$2" -o "$3" "$2" "$system$1" && mounts=("$system$1" "${mounts[@]}"); }
own /dev tmpfs mode=755
cp -a /dev/{null,zero,full,random,urandom,tty} "$system/dev"
ln -s /proc/self/fd "$system/dev/fd"
for number in 0 1 2; do ln -s "/proc/self/fd/$number" "$system/dev/std$(cut -d' ' -f$((number + 1)) <<<'in out err')"; done
own /dev/shm tmpfs mode=1777
own /dev/pts devpts newinstance,ptmxmode=0666,mode=0620
ln -s pts/ptmx "$system/dev/ptmx"
[ -z "$ccache" ] || bind "$ccache" /ccache
for package in g++ cmake git sudo; do
  ! chroot "$system" dpkg-query -W "$package" >/dev/null 2>&1 || fail "$package is installed: not bare"
done

chroot "$system" useradd --create-home tester
for home in root home/tester; do
  git -c safe.directory="$source" clone -q --no-hardlinks "$source" "$system/$home/sherd"
done
chroot "$system" chown -R tester:tester /home/tester
proxies=$(env | grep -iE '^(http|https|no)_proxy=' || true)
compiled=()
[ -z "$ccache" ] || compiled=(CCACHE_DIR=/ccache CCACHE_READONLY=1
  ${LANG:+LANG=$LANG} ${SHERD_WERROR:+SHERD_WERROR=1})
# in_system USER COMMAND…: as at a login: an environment of its own.
in_system() {
  local user=$1 home=/root variables
  shift
  [ "$user" = root ] || home=/home/$user
  mapfile -t variables < <(printf '%s' "$proxies")
  chroot --userspec="$user:$user" "$system" env -i HOME="$home" USER="$user" TERM=dumb \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    "${compiled[@]}" "${variables[@]}" sh -c "cd $home/sherd && $*"
}

say "a user without sudo: ./dev train"
status=0
in_system tester ./dev train >"$folder/said" 2>&1 || status=$?
cat "$folder/said"
[ "$status" -eq 1 ] || fail "exit code $status, not 1"
[ "$(wc -l <"$folder/said")" -eq 1 ] || fail "more than one sentence"
grep -q 'ask an administrator to run: apt-get install' "$folder/said" || fail "no word on what to do"
rm "$folder/said"

if [ -n "$short" ]; then
  say "root: ./dev sherd info"
  in_system root ./dev sherd info
else
  say "root: ./dev train"
  in_system root ./dev train
  say "root: ./dev test"
  in_system root ./dev test
fi
say "the user, now that all is installed: ./dev help"
in_system tester './dev help' >/dev/null
say "passed"
