#!/bin/sh
# Installs the servers and tools that tests and benchmarks use, where that is possible.
# Without root nothing is installed: tests that need one skip on a laptop and fail in CI.
#     tools/services.sh               all of them
#     tools/services.sh etcd-server   these only
known="rabbitmq-server:/usr/sbin/rabbitmq-server redis-server:redis-server npm:npm etcd-server:etcd chromium:chromium"
need=""
for pair in $known; do
    package=${pair%%:*} program=${pair#*:}
    case " ${*:-$package} " in *" $package "*) ;; *) continue ;; esac
    command -v "$program" >/dev/null 2>&1 || need="$need $package"
done
if [ $# = 0 ]; then
    ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || need="$need postgresql"
fi
[ -z "$need" ] && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "not installed, and this is not root on Debian:$need (what needs them is skipped)"
    exit 0
fi
echo "installing:$need"
# The package would start its own server; ours are started by the tests, on free ports.
printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d && chmod +x /usr/sbin/policy-rc.d
apt-get update -qq && apt-get install -y -qq --no-install-recommends $need >/dev/null
rm -f /usr/sbin/policy-rc.d
