# What a machine has, then the tests, then its end.
export HOME=/root LANG=C.UTF-8 NO_COLOR=1
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devices /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs -o size=3g memory /dev/shm
mount -t devpts terminals /dev/pts
mount -t tmpfs files /tmp
mount -t tmpfs files /run
mount -t cgroup2 groups /sys/fs/cgroup
mount -t securityfs security /sys/kernel/security
ip link set lo up
echo "+memory +pids +cpu" > /sys/fs/cgroup/cgroup.subtree_control
uname -a
cd /work/checkout
eval "set -- $(cat /arguments)"
# A session of its own: what tests send to a group must not reach this shell.
setsid -w python3 -m pytest -p no:cacheprovider --no-header "$@" < /dev/null
echo "tests ended with status $?"
sync
echo o > /proc/sysrq-trigger
sleep 60
