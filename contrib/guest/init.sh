#!/bin/busybox sh
# The first process of a virtual machine of `ringloom tune` on a cluster: loads the drivers in /modules, asks for an address, and
# runs the agent with the token of the kernel's command line (`ringloom.token=`). The machine powers off if the agent ends.
# udhcpc calls this file too, with a word that says what has happened.
export PATH=/bin:/sbin:/usr/bin:/usr/sbin

case $1 in
bound | renew)
    ifconfig "$interface" "$ip" netmask "$subnet" mtu "${mtu:-1500}"
    [ -z "$router" ] || route add default gw "${router%% *}" dev "$interface" 2> /dev/null
    exit 0
    ;;
deconfig | leasefail | nak)
    exit 0
    ;;
esac

/bin/busybox mkdir -p /bin /proc /sys /dev /tmp /run /root
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
mount -t tmpfs tmp /tmp
while read -r module; do
    insmod "/modules/$module.ko" || echo "init: module $module was not inserted"
done < /modules/order

token=
read -r line < /proc/cmdline
for word in $line; do
    case $word in
    ringloom.token=*) token=${word#ringloom.token=} ;;
    esac
done
if [ -z "$token" ]; then
    echo "init: the kernel's command line has no ringloom.token="
    poweroff -f
fi
(umask 077 && printf '%s' "$token" > /run/token)

ifconfig lo 127.0.0.1
for entry in /sys/class/net/*; do
    interface=${entry##*/}
    if [ "$interface" != lo ]; then
        ifconfig "$interface" up
        # In the background: it asks until it is answered, then renews what it was given.
        udhcpc -f -i "$interface" -s /init -O mtu -t 5 -T 1 -A 2 &
    fi
done

ringloom agent --listen 0.0.0.0:7777 --token-file /run/token
echo "init: the agent ended with status $?"
poweroff -f
