# Runs fio with the words given, in the directory of this file. fio ends when standard input does.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
cd "${0%/*}" || exit 125
exec 3<&0
fio "$@" </dev/null 2>&1 3<&- &
fio=$!
(
    while read -r ignored; do :; done
    kill "$fio"
    sleep 2
    kill -9 "$fio"
) <&3 >/dev/null 2>&1 &
guard=$!
wait "$fio"
status=$?
kill "$guard" 2>/dev/null
# 255 is ssh's own.
if [ "$status" -eq 255 ]; then status=254; fi
exit "$status"
