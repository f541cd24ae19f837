#!/bin/busybox sh
# The first process of a guest: prepares the system, says hello, then obeys its virtio-serial port.
# An order is one line, then as many bytes as the line says. Its answer stands between two marker lines with the
# order's word, which nothing else in the guest knows:
#   run WORD LENGTH          runs the bytes as a script; the answer is all it prints
#   put WORD LENGTH PATH     makes the bytes a file
# The guest powers off when the port's other side is closed.
/bin/busybox --install -s /bin
export PATH=/bin:/sbin:/usr/bin:/usr/sbin
mkdir -p /proc /sys /dev /tmp /run /root
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
ln -s /proc/self/fd /dev/fd
ln -s fd/0 /dev/stdin
ln -s fd/1 /dev/stdout
ln -s fd/2 /dev/stderr
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
while read -r module; do
    insmod "/modules/$module.ko" || echo "agent: module $module was not inserted"
done < /modules/order

find_port() {
    for entry in /sys/class/virtio-ports/*; do
        name=
        [ -r "$entry/name" ] && read -r name < "$entry/name"
        if [ "$name" = ringloom.agent ] && [ -c "/dev/${entry##*/}" ]; then
            port=/dev/${entry##*/}
            return 0
        fi
    done
    return 1
}

port=
tries=0
until find_port; do
    tries=$((tries + 1))
    if [ "$tries" -gt 1000 ]; then
        echo "agent: there is no virtio port ringloom.agent"
        poweroff -f
    fi
    usleep 10000
done

# Opened once and for all: bytes that arrive while nobody has the port open are lost.
exec 3<> "$port"
printf '@@begin hello\n' >&3
uname -r >&3
printf '@@end hello 0\n' >&3

cd /root
while read -r order word length path <&3; do
    # Taken as a whole before anything can fail, so that the next order is found.
    head -c "$length" <&3 > /run/bytes
    status=$?
    printf '@@begin %s\n' "$word" >&3
    case $order in
    run)
        # By way of a pipe: the port cannot be opened twice, as a script would that names /dev/stdout.
        { sh /run/bytes 3>&- < /dev/null 2>&1; echo $? > /run/status; } | cat >&3
        read -r status < /run/status
        ;;
    put)
        if [ "$status" = 0 ]; then
            mv /run/bytes "$path" >&3 2>&1
            status=$?
        fi
        ;;
    *)
        echo "agent: $order is no order" >&3
        status=127
        ;;
    esac
    printf '@@end %s %s\n' "$word" "$status" >&3
done
echo "agent: the port was closed"
poweroff -f
