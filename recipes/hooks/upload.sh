#!/bin/sh
# Uploads a checkpoint: hooks.on_save: "TARGET=/mnt/store/my_run recipes/hooks/upload.sh"
#
# TARGET   a folder, or with UPLOAD a name that the command understands
# UPLOAD   the command that gets the checkpoint's folder and its name at the target; the default
#          copies. Examples:  UPLOAD="rclone copy"        TARGET=remote:bucket/my_run
#                             UPLOAD="aws s3 cp --recursive" TARGET=s3://bucket/my_run
#                             UPLOAD="rsync -a"           TARGET=host:/store/my_run
#
# The copy gets its name when it is complete, so a reader of TARGET never sees a half. A store's client
# has rules of its own. The run tries again after a failure, with the same name.
set -eu
: "${SHERD_CHECKPOINT:?the run sets it}" "${TARGET:?where to upload}"
name=$(basename "$SHERD_CHECKPOINT")
if [ -n "${UPLOAD:-}" ]; then
  exec $UPLOAD "$SHERD_CHECKPOINT" "$TARGET/$name"
fi
mkdir -p "$TARGET"
rm -rf "$TARGET/.$name.part" "$TARGET/$name"
cp -R "$SHERD_CHECKPOINT" "$TARGET/.$name.part"
mv "$TARGET/.$name.part" "$TARGET/$name"
