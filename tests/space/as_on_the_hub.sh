#!/bin/sh
# Run a command as the hub runs one: as user 1000, where no user namespace can be made.
#
# One namespace may be made below this one, and the command is in it: the next is refused.
set -eu
[ "${1:-}" = --inside ] || exec unshare --user --map-root-user "$0" --inside "$@"
shift
echo 1 >/proc/sys/user/max_user_namespaces
exec unshare --user --map-user=1000 --map-group=1000 "$@"
