# Makes a disk with PostgreSQL and SQLite for a guest: a file system with their programs, and an empty cluster of databases.
# make-disk.sh DIRECTORY IMAGE SIZE: the directory is new, and is left behind.
set -eu
directory=$1 image=$2 size=$3
set -- /usr/lib/postgresql/*/bin/postgres
for postgres; do :; done
programs=${postgres%/bin/postgres}
share=/usr/share/postgresql/${programs##*/}
root=$directory/root
mkdir -p "$root/bin" "$root/dev" "$root/etc" "$root/proc" "$root/tmp" "$root/sqlite" "$root$share"
chmod 1777 "$root/tmp"

# A program, and the libraries that it needs.
take() {
  for file in "$1" $(ldd "$1" | grep -o '/[^ ]*'); do
    mkdir -p "$root${file%/*}"
    cp -Ln "$file" "$root$file"
  done
}
take "$postgres"
take "$programs/bin/psql"
take "$programs/lib/plpgsql.so"
take "$(command -v sqlite3)"
cp -r "$share/timezonesets" "$root$share"
cp -L "$(command -v busybox)" "$root/bin/busybox"
ln -s busybox "$root/bin/sh"
printf 'root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n' > "$root/etc/passwd"
ln -s "$programs/bin/postgres" "$root/bin/postgres"
ln -s "$programs/bin/psql" "$root/bin/psql"

# PostgreSQL makes nothing as root, and nobody else may look into the directory.
place=$(mktemp -d /var/tmp/ringloom-cluster.XXXXXX)
trap 'rm -rf "$place"' EXIT
chown 65534:65534 "$place"
cd /
setpriv --reuid=65534 --regid=65534 --clear-groups "$programs/bin/initdb" --pgdata="$place/data" --username=nobody \
  --auth=trust --data-checksums --encoding=UTF8 --locale=C --wal-segsize=1 --no-sync > "$directory/initdb.log"
cat >> "$place/data/postgresql.conf" <<CONF
listen_addresses = ''
unix_socket_directories = '/tmp'
dynamic_shared_memory_type = sysv
shared_memory_type = sysv
shared_buffers = 4MB
max_connections = 5
max_wal_senders = 0
wal_level = minimal
min_wal_size = 2MB
max_wal_size = 4MB
timezone = GMT
log_timezone = GMT
autovacuum = off
CONF
cp -a "$place/data" "$root/data"
mkfs.ext4 -q -F -d "$root" "$image" "$size"
