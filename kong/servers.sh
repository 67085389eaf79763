# Starts servers for the demo and the playground: Redis, Postgres, a gateway with the plugin, the REST API.
#
# Sourced by demo-full.sh and playground.sh, which run in the top folder with the programs in bin/. LISTEN is the
# gateway's address (port 0: any), METRICS_LISTEN the address of the plugin's metrics (off: none). Everything ends with
# the script.
#
# Redis and Postgres listen on unix sockets in a temporary folder only. Where they are missing, apt-get installs
# them, if INSTALL_MISSING=1 asks for it. The timeouts of Redis are long, because all servers share this machine.

listen=${LISTEN:-127.0.0.1:8000}
dir=$(mktemp -d "${TMPDIR:-/tmp}/demo.XXXXXX")
redis='' postgres='' gateway='' api='' # process ids, while they run
reason=''                              # why the script fails: its last line

# stop SIGNAL PID ends a process that this script has started, and waits for its end.
stop() {
	[ -z "$2" ] || ! kill -s "$1" "$2" 2>/dev/null || wait "$2" || true
}

cleanup() {
	status=$?
	trap - EXIT INT TERM
	stop TERM "$api"
	stop TERM "$gateway"
	stop INT "$postgres"
	stop TERM "$redis"
	if [ "$status" -ne 0 ] && [ "$status" -lt 128 ]; then
		tail -n 20 "$dir"/*.log 2>/dev/null >&2 || true
		[ -z "$reason" ] || printf '%s: %s\n' "${0##*/}" "$reason" >&2
	fi
	rm -rf "$dir"
	exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

fail() {
	reason=$1
	exit 1
}

# need_free VARIABLE ADDRESS fails if something listens at an address.
need_free() {
	! (exec 3<>"/dev/tcp/${2%:*}/${2##*:}") 2>/dev/null ||
		fail "$2 is in use: end what listens there, or set $1 to another address, such as $1=127.0.0.1:8100"
}

# await WHAT PID COMMAND ... waits until the command succeeds: for at most half a minute, and while the process lives.
await() {
	local what=$1 pid=$2 tries=300
	shift 2
	until "$@" >/dev/null 2>&1; do
		tries=$((tries - 1))
		[ "$tries" -gt 0 ] || fail "no $what within 30 s"
		kill -0 "$pid" 2>/dev/null || fail "no $what: the process has ended"
		sleep 0.1
	done
}

# install PACKAGE installs a Debian package, if INSTALL_MISSING asks for it, as make does.
install() {
	[ -n "${INSTALL_MISSING:-}" ] || fail "$1 is missing: apt-get install $1"
	printf 'installing %s …\n' "$1"
	{ apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y -o DPkg::Lock::Timeout=120 "$1"; } \
		>"$dir/install.log" 2>&1 || fail "$1 is missing and cannot be installed: apt-get install $1"
}

# find_postgres prints the folder of the newest Postgres; Debian keeps its programs out of the PATH.
find_postgres() {
	local found
	found=$(printf '%s\n' /usr/lib/postgresql/*/bin/postgres | sort -V | tail -n 1)
	[ -x "$found" ] || found=$(command -v postgres) || return 1
	dirname "$found"
}

# as_postgres COMMAND ... replaces the shell by a program of Postgres, which does not run as root.
as_postgres() {
	cd /
	if [ "$(id -u)" -eq 0 ]; then
		exec setpriv --reuid=postgres --regid=postgres --clear-groups -- "$@"
	fi
	exec "$@"
}

start_postgres() {
	(as_postgres "$programs/postgres" -D "$dir/postgres/data" -k "$dir/postgres" -c listen_addresses= -c fsync=off) \
		>>"$dir/postgres.log" 2>&1 &
	postgres=$!
	await Postgres "$postgres" "$programs/pg_isready" -h "$dir/postgres" -U postgres -d postgres
}

stop_postgres() {
	stop INT "$postgres"
	postgres=''
}

start_servers() {
	need_free LISTEN "$listen"
	need_free METRICS_LISTEN "${METRICS_LISTEN:-off}"
	command -v redis-server >/dev/null || install redis-server
	programs=$(find_postgres) || { install postgresql && programs=$(find_postgres); }
	command -v curl >/dev/null || install curl

	chmod 711 "$dir" # for the user that Postgres runs as
	mkdir -m 700 "$dir/postgres"
	[ "$(id -u)" -ne 0 ] || chown postgres: "$dir/postgres"
	(as_postgres "$programs/initdb" -D "$dir/postgres/data" -U postgres -A trust -N) >"$dir/initdb.log" 2>&1
	start_postgres
	"$programs/createuser" -h "$dir/postgres" -U postgres ratelimit # owns the tables, and is no superuser
	"$programs/createdb" -h "$dir/postgres" -U postgres -O ratelimit ratelimit
	echo "host=$dir/postgres user=ratelimit dbname=ratelimit" >"$dir/database"
	RATELIMIT_DATABASE=$(cat "$dir/database") bin/ratelimit migrate up

	redis-server --port 0 --unixsocket "$dir/redis.sock" --save '' --appendonly no --dir "$dir" >"$dir/redis.log" &
	redis=$!
	await Redis "$redis" test -S "$dir/redis.sock"
	local block="{socket: $dir/redis.sock, send_timeout: 1000, read_timeout: 1000}"
	sed "s|^\( *\)strategy: local\$|\1strategy: redis\n\1redis: $block|" kong/kong.yml >"$dir/kong.yml"
}

# Kong passes a plugin server its settings in the start command. The gateway takes an executable instead, and names the
# socket after it. This one adds the settings.
start_gateway() {
	mkdir "$dir/plugin" "$dir/snapshots"
	cat >"$dir/plugin/tenant-rate-limiting" <<-END
		#!/bin/sh
		exec '$PWD/bin/tenant-rate-limiting' -database-file '$dir/database' -snapshot-dir '$dir/snapshots' -metrics-listen '${METRICS_LISTEN:-off}' "\$@"
	END
	chmod +x "$dir/plugin/tenant-rate-limiting"
	bin/demo-gateway -config "$dir/kong.yml" -plugin "$dir/plugin/tenant-rate-limiting" -listen "$listen" \
		>"$dir/gateway.log" 2>&1 &
	gateway=$!
	await gateway "$gateway" grep -q 'serving until interrupted' "$dir/gateway.log"
	url=$(sed -n 's/^gateway \([^ ]*\) .*/\1/p' "$dir/gateway.log")
	plugin=$(sed -n 's/^gateway .* plugin pid \([0-9]*\)$/\1/p' "$dir/gateway.log")
}

# start_api serves the REST API at a port of its own. It decides by the gateway's config and from its buckets. Callers
# need a token; curl reads it from a file, where the list of processes does not show it.
start_api() {
	bin/ratelimit serve --database-file "$dir/database" --config "$dir/kong.yml" --listen 127.0.0.1:0 \
		--metrics-listen off --drain-time 1ms 2>"$dir/api.log" &
	api=$!
	await 'REST API' "$api" grep -q 'serving the API' "$dir/api.log"
	api_url=http://$(sed -n 's/.*"serving the API","address":"\([^"]*\)".*/\1/p' "$dir/api.log")
}

stop_api() {
	stop TERM "$api"
	api=''
}
