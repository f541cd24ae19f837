#!/bin/sh
# Stand-in for KubeVirt's virt-launcher, with its arguments: waits for the order of the stand-in of virt-handler (QEMU's
# arguments, one a line) and for the guest's kernel, runs QEMU until it ends or the pod is to end.
disks=
while [ $# -gt 0 ]; do
    if [ "$1" = --container-disk-dir ]; then
        disks=$2
    fi
    shift
done
order=/tmp/order
kernel=$disks/kernel-boot
qemu=

# Ends the container of the kernel too, so that the pod ends.
finish() {
    rm -rf "$kernel"
    exit "$1"
}

stop() {
    [ -z "$qemu" ] || kill -TERM "$qemu"
    [ -n "$qemu" ] || finish 0
}
trap stop TERM INT

until [ -f "$order" ] && [ -d "$kernel" ]; do
    # In the background, since a signal is only acted upon between commands.
    sleep 0.1 &
    wait $!
done
while IFS= read -r word; do
    set -- "$@" "$word"
done < "$order"
cd "$disks" || finish 1
qemu-system-x86_64 "$@" < /dev/null &
qemu=$!
wait "$qemu"
status=$?
# A signal ends the wait; QEMU ends a moment later.
while kill -0 "$qemu" 2> /dev/null; do
    wait "$qemu"
    status=$?
done
echo "QEMU ended with status $status"
finish "$status"
