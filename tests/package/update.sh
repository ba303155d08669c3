#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# In a guest of guest.py, under systemd: an older package, this one over it under traffic, and the way back, twice. One talker has the older
# library all the time, another one this library. Out: a part for each question, `== NAME` and the answer. Nothing is judged here but exit
# statuses.
set -eu

# shellcheck source=tests/package/common.sh
. /share/common

sent() { ktsn status --json | sed -n 's/^ *"sent": \([0-9]*\),$/\1/p' | head -n 1; }
beyond() { [ "$(sent)" -gt "$1" ]; }
# Frames leave again. The second look shows that they go on.
goes_on() {
    until_ "the pod's attachment" serves
    local looks
    for looks in 1 2; do until_ "frames of the pod, look $looks" beyond $(($(sent) + 50)); done
}
# package FILE NAME: installs it under traffic.
package() {
    echo "== $2"
    dpkg --install "$1"
    goes_on
    dpkg-query -W -f '${Version}\n' ktsn
    ktsn status --json
}
# lasting PORT: a talker and a listener that go on until `end`.
lasting() {
    listen "$1" 0 600s
    echo $! >"/run/listener.$1"
    talk "$1" 0 --json "/run/sent.$1" >/dev/null &
    echo $! >"/run/talker.$1"
}
# end PORT: the last frame leaves half a second after the talker's end.
end() {
    kill "$(cat "/run/talker.$1")"
    wait "$(cat "/run/talker.$1")"
    sleep 5
    kill "$(cat "/run/listener.$1")"
    wait "$(cat "/run/listener.$1")"
    echo "== sent_$1"
    cat "/run/sent.$1"
    echo "== heard_$1"
    cat "/run/heard.$1"
}

echo "== old"
rm -f /var/lib/man-db/auto-update
dpkg --install /root/older.deb
until_ "the service runs" systemctl is-active ktsnd.service
configure
systemctl restart ktsnd.service
pod
until_ "the pod's attachment" serves
until_ "a datagram of the pod" takes
lasting 7002
goes_on
ktsn status --json

package /root/ktsn.deb update
lasting 7003
goes_on
package /root/older.deb rollback
echo "== stream"
stream 50
package /root/ktsn.deb update_again
end 7002
end 7003
echo "== status"
ktsn status --json
echo "== log"
journalctl --no-pager -o cat -u ktsnd.service | grep -E ' WARN | ERROR ' || true
echo "== end"
