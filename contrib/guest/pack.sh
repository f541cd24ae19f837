#!/bin/sh
# Puts a guest's kernel and initramfs together from what Debian's packages have installed: INIT RINGLOOM DIRECTORY.
# Needs busybox-static, cpio, fio, kmod and one linux-image. contrib/Containerfile.guest calls it.
# The same files make the same archive: names are sorted, modes, times and numbers of inodes are fixed.
set -eu
umask 022
export LC_ALL=C
init=$1
ringloom=$2
out=$3
version=$(ls /lib/modules)
case $version in
*[[:space:]]*)
    echo "pack: more than one kernel: $version" >&2
    exit 1
    ;;
esac
root=$(mktemp -d)
mkdir -p "$out" "$root/bin" "$root/dev" "$root/modules"
cp "$init" "$root/init"
cp "$ringloom" "$root/bin/ringloom"
cp "$(command -v busybox)" "$root/bin/busybox"
chmod 755 "$root" "$root/init" "$root/bin/ringloom"

# fio at the same path, and its libraries at theirs.
fio=$(command -v fio)
for file in "$fio" $(ldd "$fio" | grep -o '/[^ )]*'); do
    mkdir -p "$root$(dirname "$file")"
    cp -L "$file" "$root$file"
done

# The drivers in an order in which they can be inserted; those built into the kernel have no file.
: > "$root/modules/order"
for module in virtio_pci virtio_net virtio_blk; do
    modprobe --show-depends --set-version "$version" "$module" | while read -r what file _; do
        [ "$what" = insmod ] || continue
        name=$(basename "$file")
        name=${name%%.ko*}
        case $file in
        *.xz) xz -dc "$file" > "$root/modules/$name.ko" ;;
        *.zst) zstd -dc "$file" > "$root/modules/$name.ko" ;;
        *) cp "$file" "$root/modules/$name.ko" ;;
        esac
        grep -qx "$name" "$root/modules/order" || echo "$name" >> "$root/modules/order"
    done
done

find "$root" -exec touch --no-dereference --date=@0 {} +
(cd "$root" && find . | sort | cpio --quiet --create --format=newc --owner=0:0 --reproducible) > "$out/initrd"
cp "/boot/vmlinuz-$version" "$out/vmlinuz"
rm -rf "$root"
