#!/bin/sh
# write_quickstart.sh SOURCE LIST FOLDER: recipe.yaml and text.txt of the quickstart that packages carry. The text has
# the headers that the file LIST names, whole, up to 1.5 MB. The same sources give the same bytes.
set -eu
source=$1 list=$2 folder=$3
mkdir -p "$folder"
path='path: /usr/include/eigen3 .*'
if [ "$(grep -c "$path" "$source/recipes/quickstart.yaml")" -ne 1 ]; then
  echo "write_quickstart: recipes/quickstart.yaml doesn't have the path of its text once" >&2
  exit 1
fi
sed -e "s|$path|path: text.txt|" -e 's/# Eigen, byte/# Sherd, byte/' "$source/recipes/quickstart.yaml" >"$folder/recipe.yaml"
written=0
while IFS= read -r header; do
  written=$((written + $(wc -c <"$source/$header")))
  if [ "$written" -gt 1500000 ]; then break; fi
  printf '// %s\n' "$header"
  cat "$source/$header"
done <"$list" >"$folder/text.txt"
