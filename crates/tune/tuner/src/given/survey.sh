# What a guest says of itself and of $device. One fact per line, NAME=VALUE; then the kernel's tables.
LC_ALL=C
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
export LC_ALL PATH
say() { printf '%s=%s\n' "$1" "$2"; }
first() { head -n 1 "$1" 2>/dev/null; }

say kernel "$(uname -s -r -m)"
say host "$(uname -n)"
say machine "$(first /etc/machine-id)"
say cpus "$(grep -c '^processor' /proc/cpuinfo)"
say cpu "$(grep '^model name' /proc/cpuinfo | head -n 1 | cut -d : -f 2-)"
say memory "$(grep '^MemTotal:' /proc/meminfo | cut -d : -f 2-)"
say detected "$(systemd-detect-virt --vm 2>/dev/null)"
say flag "$(grep -c '^flags.* hypervisor' /proc/cpuinfo)"
say xen "$(first /sys/hypervisor/type)"
say vendor "$(first /sys/class/dmi/id/sys_vendor)"
say fio "$(fio --version 2>/dev/null)"
say fio_path "$(command -v fio)"

# What is below or on a part of the disk.
part() {
    say part "$(first "$1/dev") ${1##*/}"
    for holder in "$1"/holders/*; do
        if [ -e "$holder" ]; then say holder "${1##*/} ${holder##*/}"; fi
    done
}

if [ -b "$device" ]; then
    say kind block
    set -- $(stat -L -c '0x%t 0x%T' "$device")
    sys=$(readlink -f "/sys/dev/block/$(($1)):$(($2))")
    say sectors "$(first "$sys/size")"
    say read_only "$(first "$sys/ro")"
    whole=$sys
    if [ -e "$sys/partition" ]; then whole=${sys%/*}; fi
    say model "$(first "$whole/device/model")"
    say rotational "$(first "$whole/queue/rotational")"
    say scheduler "$(first "$whole/queue/scheduler")"
    set -- "$whole"/mq/*
    if [ -d "$1" ]; then say queues $#; fi
    part "$sys"
    if [ "$whole" != "$sys" ]; then part "$whole"; fi
    for partition in "$sys"/*; do
        if [ -e "$partition/partition" ]; then part "$partition"; fi
    done
elif [ -f "$device" ]; then
    say kind file
    say bytes "$(stat -L -c %s "$device")"
    say stored "$(stat -L -c '%b %B' "$device")"
    say file_system "$(stat -L -f -c %T "$device")"
    for loop in /sys/block/loop*; do
        file=$(first "$loop/loop/backing_file")
        if [ -n "$file" ] && [ "$file" -ef "$device" ]; then
            say loop "/dev/${loop##*/} $(first "$loop/ro")"
        fi
    done
elif [ -d "$device" ]; then
    say kind directory
elif [ -e "$device" ]; then
    say kind other
fi
say real "$(readlink -f "$device")"
if [ -w "$device" ]; then say writable yes; fi
if dd if="$device" of=/dev/null bs=4096 count=1 2>/dev/null; then say readable yes; fi
if dd if="$device" of=/dev/null bs=4096 count=1 iflag=direct 2>/dev/null; then say direct yes; fi
say io_uring_disabled "$(first /proc/sys/kernel/io_uring_disabled)"
echo @mounts
cat /proc/self/mountinfo
echo @swaps
cat /proc/swaps 2>/dev/null
exit 0
