#!/bin/sh
# The first program of the machine. The kernel's initial root can be no process's old root, which a
# jail takes down, so the same files are mounted once more and that is the root from here on.
export PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
mkdir -p /again /proc /sys /dev /run /tmp
mount --bind / /again
cd /again || exit 1
mount --move . / && exec chroot . /bin/sh /tests.sh
