#!/usr/bin/env bash
# Plays a session through gateway, plugin, Redis and Postgres, all its own: limits from the decK file, limits changed at
# run time, Postgres away. Every step is checked, and the first that goes otherwise ends the script with status 1.
#
# Run by make demo-full, from the top folder, with the programs in bin/. LISTEN is the gateway's address (port 0: any);
# ONCE=1 ends after the session, otherwise everything stays up to look around.
#
# Redis and Postgres listen on unix sockets in a temporary folder only. Where they are missing, apt-get installs them.
set -euo pipefail

listen=${LISTEN:-127.0.0.1:8000}
dir=$(mktemp -d "${TMPDIR:-/tmp}/demo.XXXXXX")
live=8s                         # how old a live node's last report may be; it reports every 5 s
redis='' postgres='' gateway='' api='' # process ids, while they run
first=''                               # the node of the first plugin server

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
		tail -n 20 "$dir"/*.log >&2 || true
	fi
	rm -rf "$dir"
	exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

fail() {
	printf 'demo-full: %s\n' "$1" >&2
	exit 1
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

# --- the servers -------------------------------------------------------------------------------------------------------

# install PACKAGE installs a Debian package.
install() {
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

# as_postgres COMMAND ... becomes a program of Postgres, which refuses root.
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
	command -v redis-server >/dev/null || install redis-server
	programs=$(find_postgres) || { install postgresql && programs=$(find_postgres); }
	command -v curl >/dev/null || install curl

	chmod 711 "$dir" # for the user that Postgres runs as
	mkdir -m 700 "$dir/postgres"
	[ "$(id -u)" -ne 0 ] || chown postgres: "$dir/postgres"
	(as_postgres "$programs/initdb" -D "$dir/postgres/data" -U postgres -A trust -N) >"$dir/initdb.log" 2>&1
	start_postgres
	"$programs/createuser" -h "$dir/postgres" -U postgres ratelimit # the tables' owner, which is no superuser
	"$programs/createdb" -h "$dir/postgres" -U postgres -O ratelimit ratelimit
	echo "host=$dir/postgres user=ratelimit dbname=ratelimit" >"$dir/database"

	redis-server --port 0 --unixsocket "$dir/redis.sock" --save '' --appendonly no --dir "$dir" >"$dir/redis.log" &
	redis=$!
	await Redis "$redis" test -S "$dir/redis.sock"
}

# Kong gives a plugin server its settings in the start command. The gateway wants an executable instead, and its name is
# that of the socket: so here is one, which adds the settings.
start_gateway() {
	mkdir "$dir/plugin" "$dir/snapshots"
	cat >"$dir/plugin/tenant-rate-limiting" <<-END
		#!/bin/sh
		exec '$PWD/bin/tenant-rate-limiting' -database-file '$dir/database' -snapshot-dir '$dir/snapshots' -metrics-listen off "\$@"
	END
	chmod +x "$dir/plugin/tenant-rate-limiting"
	bin/demo-gateway -config kong/kong.yml -plugin "$dir/plugin/tenant-rate-limiting" -redis "$dir/redis.sock" \
		-listen "$listen" >"$dir/gateway.log" 2>&1 &
	gateway=$!
	await gateway "$gateway" grep -q 'serving until interrupted' "$dir/gateway.log"
	url=$(sed -n 's/^gateway \([^ ]*\) .*/\1/p' "$dir/gateway.log")
	plugin=$(sed -n 's/^gateway .* plugin pid \([0-9]*\)$/\1/p' "$dir/gateway.log")
}

# start_api serves the REST API at a port of its own, deciding by the gateway's config and from its buckets. Whoever asks
# needs a token; curl reads it from a file, where the list of processes does not show it.
start_api() {
	sed "s|^\( *\)strategy: local\$|\1strategy: redis\n\1redis: {socket: $dir/redis.sock}|" kong/kong.yml >"$dir/kong.yml"
	bin/ratelimit serve --database-file "$dir/database" --config "$dir/kong.yml" --listen 127.0.0.1:0 --metrics-listen off \
		--drain-time 1ms 2>"$dir/api.log" &
	api=$!
	await 'REST API' "$api" grep -q 'serving the API' "$dir/api.log"
	api_url=http://$(sed -n 's/.*"serving the API","address":"\([^"]*\)".*/\1/p' "$dir/api.log")
}

stop_api() {
	stop TERM "$api"
	api=''
}

# --- the session -------------------------------------------------------------------------------------------------------

title() { printf '\n%s\n' "$1"; }

# operator WORD ... runs the operator's program on the session's database, and shows how it is called and what it says.
operator() {
	printf '  $ ratelimit'
	printf ' %q' "$@"
	printf '\n'
	local status=0
	RATELIMIT_DATABASE=$(cat "$dir/database") RATELIMIT_ACTOR=demo bin/ratelimit "$@" >"$dir/operator.out" 2>&1 || status=$?
	sed 's/^/    /' "$dir/operator.out"
	return "$status"
}

# get KEY sends a request with an API key. Status, headers and body are kept for the checks.
get() {
	code=$(curl -sS --max-time 10 -D "$dir/headers" -o "$dir/body" -w '%{http_code}' -H "apikey: $1" -H 'X-User-Id: u_1' "$url/records")
}

# header NAME prints a header of the last answer; nothing when there is none.
header() { tr -d '\r' <"$dir/headers" | sed -n "s/^$1: //Ip"; }

# show KEY sends a request and shows its answer in one line.
show() {
	get "$1"
	local limits=''
	[ -z "$(header X-RateLimit-Limit)" ] || limits="$(header X-RateLimit-Remaining) of $(header X-RateLimit-Limit) left"
	[ -z "$(header Retry-After)" ] || limits="$limits${limits:+, }retry after $(header Retry-After) s"
	printf '  GET /records with %-10s → %s   %s\n' "$1" "$code" "$limits"
}

# want CODE LIMIT checks the last answer; the limit is that of the X-RateLimit-Limit header.
want() {
	[ "$code" = "$1" ] || fail "status $code, want $1: $(cat "$dir/body")"
	[ "$(header X-RateLimit-Limit)" = "$2" ] || fail "X-RateLimit-Limit: $(header X-RateLimit-Limit), want $2"
}

# want_ban checks that the last answer is a ban's, and that it says when the ban ends, in at most SECONDS.
want_ban() {
	[ "$code" = 429 ] || fail "status $code, want 429"
	grep -q 'abnormal-usage-detected' "$dir/body" || fail "not the answer of a ban: $(cat "$dir/body")"
	local after
	after=$(header Retry-After)
	{ [ "${after:-0}" -ge 1 ] && [ "$after" -le "$1" ]; } || fail "Retry-After: $after, want 1 to $1"
}

from_deck() {
	title 'The limits of kong.yml: essentials has 5 a second, enterprise 500 a minute for each user'
	show beta-key
	want 200 5
	show acme-key
	want 200 500
}

override() {
	title 'An override by the CLI; the next request is decided by it'
	operator override add --tenant acme --kind custom_limit --policy per-user --limit 800 --expires-in 1h \
		--reason 'migration weekend' --wait
	show acme-key
	want 200 800
	operator fleet
}

ban() {
	title 'A ban, and its end: nobody has to end it'
	operator override add --tenant beta --kind ban --expires-in 3s --reason 'credential stuffing' --wait
	show beta-key
	want_ban 3
	sed 's/^/    /' "$dir/body"
	printf '\n  … waiting %s s, as Retry-After says …\n' "$(header Retry-After)"
	sleep "$(header Retry-After)"
	show beta-key
	want 200 5
}

# ask WORD ... asks the REST API by curl, and shows how, and what it says.
ask() {
	printf '  $ curl -K demo.curl'
	printf " '%s'" "$@"
	printf '\n'
	local status=0
	curl -K "$dir/demo.curl" "$@" >"$dir/operator.out" 2>&1 || status=$?
	sed 's/^/    /' "$dir/operator.out"
	printf '\n'
	return "$status"
}

rest() {
	title 'The same by REST: a token, an override by curl, and what it did'
	operator token create demo --role admin --expires-in 1d --reason 'this session' >"$dir/token.out"
	sed 's/rl_.*/rl_…/' "$dir/token.out"
	(
		umask 077
		printf 'header = "Authorization: Bearer %s"\n' "$(grep -o 'rl_.*' "$dir/operator.out")" >"$dir/demo.curl"
		printf '%s\n' 'header = "Content-Type: application/json"' silent show-error fail-with-body 'max-time = 10' >>"$dir/demo.curl"
	)
	start_api
	ask "$api_url/v1/orgs/beta/ratelimit/overrides?wait=5s" \
		-d '{"kind":"custom_limit","policy":"burst","limit":9,"expires_in":"1h","reason":"they called"}'
	grep -q '"enforced":true' "$dir/operator.out" || fail 'it is not enforced everywhere'
	show beta-key
	want 200 9
	ask "$api_url/v1/ratelimit/check" -d '{"org_id":"beta","endpoint":"records","dry_run":true}'
	grep -q '"limit":9,' "$dir/operator.out" || fail 'the decision API does not decide as the plugin does'
	stop_api
}

away() {
	title 'Postgres stops; what it said last is still enforced'
	operator override add --tenant gamma --kind ban --expires-in 1h --reason 'unpaid' --wait
	first=$(fleet | living)
	stop_postgres
	printf '  … Postgres has stopped …\n'
	! operator policy list || fail 'the database answers although it has stopped'
	show acme-key
	want 200 800
	show gamma-key
	want_ban 3600
}

cold() {
	title 'The plugin server is killed and starts without Postgres: it enforces what it saved on disk'
	await 'snapshot with the ban' "$gateway" saved
	operator explain --snapshot "$dir/snapshots/policies.snapshot" --config kong/kong.yml --tenant gamma --tier unlimited
	kill -KILL "$plugin"
	await 'answer after the restart' "$gateway" back acme-key
	show acme-key
	want 200 800
	show gamma-key
	want_ban 3600
}

again() {
	title 'Postgres is back; the ban is ended by hand, and each change is on record'
	start_postgres
	printf '  … waiting until the new plugin server has taken the killed one out of the fleet …\n'
	await 'report of the new plugin server alone' "$gateway" reported
	operator override end "$(banned)" --reason 'paid' --wait --live-within "$live"
	show gamma-key
	want 200 5000000
	operator audit
	for reason in 'migration weekend' 'credential stuffing' 'they called' unpaid paid; do
		grep -q "$reason" "$dir/operator.out" || fail "the audit lacks: $reason"
	done
}

# back tells whether a request with an API key is admitted.
back() {
	get "$1"
	[ "$code" = 200 ]
}

# saved tells whether the ban on gamma is in the snapshot, which is written every few seconds.
saved() {
	bin/ratelimit explain --snapshot "$dir/snapshots/policies.snapshot" --config kong/kong.yml --tenant gamma | grep -q unpaid
}

# banned prints the number of the ban on gamma.
banned() { bin/ratelimit override list --tenant gamma --database-file "$dir/database" | awk '$2 == "ban" {print $1}'; }

fleet() { bin/ratelimit fleet --database-file "$dir/database" --live-within "$live"; }

# living prints the names of the nodes that live, of a fleet.
living() { awk '$4 == "yes" {print $1}'; }

# reported tells whether one node lives, another one than the first, and enforces the newest version.
reported() {
	local now
	now=$(fleet)
	grep -q '1 of 1 live node ' <<<"$now" && [ "$(living <<<"$now")" != "$first" ]
}

start_servers
RATELIMIT_DATABASE=$(cat "$dir/database") bin/ratelimit migrate up
start_gateway
printf 'gateway %s   redis %s   postgres %s\n' "$url" "$dir/redis.sock" "$dir/postgres"
for step in from_deck override ban rest away cold again; do
	$step
done
[ "${ONCE:-}" != 1 ] || exit 0
start_api

cat <<END

Try it:
  curl -i $url/records -H 'apikey: acme-key' -H 'X-User-Id: u_1'
  export RATELIMIT_DATABASE='$(cat "$dir/database")'
  bin/ratelimit override add --tenant acme --kind multiplier --factor 2 --expires-in 10m --reason 'to look around' --wait
  bin/ratelimit explain --config kong/kong.yml --tenant acme --tier enterprise --user u_1 --endpoint 'GET /records'
  bin/ratelimit fleet
  curl -K $dir/demo.curl '$api_url/v1/orgs/acme/ratelimit/policies'
  curl -K $dir/demo.curl '$api_url/v1/orgs/acme/ratelimit/usage?user=u_1'

serving until interrupted
END
wait "$gateway"
