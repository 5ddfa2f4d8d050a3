# root.sh: a bare Debian in a folder, for scripts that `source` it. They need root and debootstrap.
#
#   need_roots             ends with one sentence and exit code 77 where no root can be made
#   make_root NAME FOLDER [PACKAGE,PACKAGE…]   a minimal Debian NAME (bookworm, trixie) in FOLDER
#   bind FROM TO           FROM of this machine is TO in it
#   in_root USER COMMAND…  runs there as at a login: in the user's home, with an environment of its own
#   remove_root            unmounts, and removes FOLDER
#
# Debian's packages come from the place that this machine's own apt uses, with apt's own settings, or from
# SHERD_DEBIAN_MIRROR; Python's as pip is set up here.
say() { printf '\n== %s (%s)\n' "$*" "$(date +%T)"; }
fail() { printf '%s: FAILED: %s\n' "$(basename "$0" .sh)" "$*" >&2; exit 1; }

need_roots() {
  local missing=''
  [ "$(id -u)" -eq 0 ] || missing='it needs root, for debootstrap and chroot'
  command -v debootstrap >/dev/null || missing=${missing:-'apt-get install debootstrap'}
  [ -z "$missing" ] || { echo "$(basename "$0" .sh): skipped: $missing"; exit 77; }
}

# Where Debian's packages or their security updates are: place_of -security
place_of() {
  apt-get indextargets --format '$(CODENAME) $(REPO_URI)' 'Created-By: Packages' |
    awk -v end="$1" '$1 ~ "^[a-z]+" end "$" { print $2; exit }'
}

system='' mounts=()
bind() { mkdir -p "$system$2" && mount --bind "$1" "$system$2" && mounts=("$system$2" "${mounts[@]}"); }
own() { mkdir -p "$system$1" && mount -t "$2" -o "$3" "$2" "$system$1" && mounts=("$system$1" "${mounts[@]}"); }

# Devices of its own: removing the folder by hand would otherwise remove this machine's.
mount_devices() {
  local number
  bind /proc /proc
  bind /sys /sys
  own /dev tmpfs mode=755
  cp -a /dev/{null,zero,full,random,urandom,tty} "$system/dev"
  ln -s /proc/self/fd "$system/dev/fd"
  for number in 0 1 2; do
    ln -s "/proc/self/fd/$number" "$system/dev/std$(cut -d' ' -f$((number + 1)) <<<'in out err')"
  done
  own /dev/shm tmpfs mode=1777
  own /dev/pts devpts newinstance,ptmxmode=0666,mode=0620
  ln -s pts/ptmx "$system/dev/ptmx"
}

copy_settings() {
  local settings
  for settings in etc/apt/{apt.conf.d,trusted.gpg,trusted.gpg.d} etc/pip.conf etc/ssl/certs \
    usr/local/share/ca-certificates; do
    [ ! -e "/$settings" ] || { mkdir -p "$(dirname "$system/$settings")" && cp -aT "/$settings" "$system/$settings"; }
  done
  cp -L /etc/resolv.conf /etc/hosts "$system/etc/"
}

make_root() {
  local name=$1 packages=${3:-ca-certificates} debian security
  system=$2
  [ ! -e "$system" ] || fail "$system is there already"
  debian=${SHERD_DEBIAN_MIRROR:-$(place_of '')}
  security=${SHERD_DEBIAN_SECURITY_MIRROR:-$(place_of -security)}
  [ -n "$debian" ] || fail "this machine's apt knows no place for Debian; set SHERD_DEBIAN_MIRROR"
  mkdir -p "$system"
  debootstrap --variant=minbase --include="$packages" "$name" "$system" "$debian" >"$system.log" 2>&1 ||
    { tail -n 20 "$system.log" >&2; fail "debootstrap"; }
  rm "$system.log"
  {
    printf 'deb %s %s main\n' "$debian" "$name"
    [ -z "$security" ] || printf 'deb %s %s-security main\n' "$security" "$name"
  } >"$system/etc/apt/sources.list"
  copy_settings
  mount_devices
  chroot "$system" useradd --create-home tester
}

in_root() {
  local user=$1 home=/root variables
  shift
  [ "$user" = root ] || home=/home/$user
  mapfile -t variables < <(env | grep -iE '^((http|https|no)_proxy|PIP_(INDEX_URL|EXTRA_INDEX_URL|CERT|DEFAULT_TIMEOUT))=')
  chroot --userspec="$user:$user" "$system" env -i HOME="$home" USER="$user" TERM=dumb LC_ALL=C.UTF-8 \
    PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive \
    "${variables[@]}" sh -c "cd $home && $*"
}

remove_root() {
  local place
  for place in "${mounts[@]}"; do
    for _ in {1..50}; do  # what was stopped in there may still be ending
      if umount -q "$place"; then continue 2; fi
      sleep 0.2
    done
    umount "$place" || exit 1  # nothing of this machine is removed below
  done
  mounts=()
  [ -z "$system" ] || rm -rf "$system"
}
