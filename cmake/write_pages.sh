#!/bin/sh
# write_pages.sh PROGRAM FOLDER SOURCE CONTACT: man pages, completion scripts and Debian's files of the program, as
# cmake/package.cmake installs them. The same program writes the same bytes.
set -eu
program=$1 folder=$2 source=$3 contact=$4
version=$("$program" --version | cut -d" " -f2)
rm -rf "$folder"
mkdir -p "$folder/man1" "$folder/completion" "$folder/doc"
"$program" man --to "$folder/man1"
gzip -9n "$folder"/man1/*.1
"$program" completion bash >"$folder/completion/sherd"
"$program" completion zsh >"$folder/completion/_sherd"
"$program" completion fish >"$folder/completion/sherd.fish"
gzip -9nc "$source/CHANGELOG.md" >"$folder/doc/CHANGELOG.md.gz"
printf 'sherd (%s) unstable; urgency=medium\n\n  * CHANGELOG.md.gz in this folder lists the changes.\n\n -- %s  %s\n' \
  "$version" "$contact" "$(LC_ALL=C date -u -R -r "$source/CHANGELOG.md")" | gzip -9nc >"$folder/doc/changelog.gz"
cp "$source/cmake/copyright" "$folder/doc/copyright"
find "$folder" -type d -exec chmod 755 {} +
find "$folder" -type f -exec chmod 644 {} +
