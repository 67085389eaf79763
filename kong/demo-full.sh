#!/usr/bin/env bash
# Plays a session through a gateway, plugin, Redis and Postgres of its own: limits from the decK file, limits changed at
# run time, Postgres away. It checks every step and ends with status 1 at the first that fails.
#
# Run by make demo-full, from the top folder, with the programs in bin/. LISTEN is the gateway's address (port 0: any);
# ONCE=1 ends after the session, otherwise everything stays up to look around.
set -euo pipefail

# shellcheck source=kong/servers.sh
. kong/servers.sh

live=8s  # the age of the last report of a live node, at most; it reports every 5 s
first='' # the node of the first plugin server

# --- the session ---

title() { printf '\n%s\n' "$1"; }

# operator WORD ... runs the operator's program on the session's database, and shows the command and its output.
operator() {
	printf '  $ ratelimit'
	printf ' %q' "$@"
	printf '\n'
	local status=0
	RATELIMIT_DATABASE=$(cat "$dir/database") RATELIMIT_ACTOR=demo \
		bin/ratelimit "$@" >"$dir/operator.out" 2>&1 || status=$?
	sed 's/^/    /' "$dir/operator.out"
	return "$status"
}

# get KEY sends a request with an API key, and keeps status, headers and body for the checks.
get() {
	code=$(curl -sS --max-time 10 -D "$dir/headers" -o "$dir/body" -w '%{http_code}' \
		-H "apikey: $1" -H 'X-User-Id: u_1' "$url/records")
}

# header NAME prints a header of the last answer, or nothing.
header() { tr -d '\r' <"$dir/headers" | sed -n "s/^$1: //Ip"; }

# show KEY sends a request and shows its answer in one line.
show() {
	get "$1"
	local limits=''
	[ -z "$(header X-RateLimit-Limit)" ] || limits="$(header X-RateLimit-Remaining) of $(header X-RateLimit-Limit) left"
	[ -z "$(header Retry-After)" ] || limits="$limits${limits:+, }retry after $(header Retry-After) s"
	printf '  GET /records with %-10s → %s   %s\n' "$1" "$code" "$limits"
}

# want CODE LIMIT checks the last answer. LIMIT is the value of the X-RateLimit-Limit header.
want() {
	[ "$code" = "$1" ] || fail "status $code, want $1: $(cat "$dir/body")"
	[ "$(header X-RateLimit-Limit)" = "$2" ] || fail "X-RateLimit-Limit: $(header X-RateLimit-Limit), want $2"
}

# want_ban SECONDS checks that the last answer is a ban's, and that its Retry-After is at most SECONDS.
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
	title 'A ban that ends by itself'
	operator override add --tenant beta --kind ban --expires-in 3s --reason 'credential stuffing' --wait
	show beta-key
	want_ban 3
	sed 's/^/    /' "$dir/body"
	printf '\n  … waiting %s s for Retry-After …\n' "$(header Retry-After)"
	sleep "$(header Retry-After)"
	show beta-key
	want 200 5
}

# ask WORD ... calls the REST API by curl, and shows the command and the answer.
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

by_rest() {
	title 'The same by REST: a token, an override by curl, and its effect'
	operator token create demo --role admin --expires-in 1d --reason 'this session' >"$dir/token.out"
	sed 's/rl_.*/rl_…/' "$dir/token.out"
	(
		umask 077
		printf 'header = "Authorization: Bearer %s"\n' "$(grep -o 'rl_.*' "$dir/operator.out")" >"$dir/demo.curl"
		printf '%s\n' 'header = "Content-Type: application/json"' silent show-error fail-with-body 'max-time = 10' \
			>>"$dir/demo.curl"
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
	title 'Postgres stops; the last policies are still enforced'
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
	title 'The plugin server is killed and starts without Postgres: it enforces the policies it saved on disk'
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
	title 'Postgres is back; the ban is ended by hand, and each change is in the audit'
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

# back KEY reports whether a request with an API key is admitted.
back() {
	get "$1"
	[ "$code" = 200 ]
}

# saved reports whether the ban on gamma is in the snapshot, which is written every few seconds.
saved() {
	bin/ratelimit explain --snapshot "$dir/snapshots/policies.snapshot" --config kong/kong.yml --tenant gamma |
		grep -q unpaid
}

# banned prints the number of the ban on gamma.
banned() { bin/ratelimit override list --tenant gamma --database-file "$dir/database" | awk '$2 == "ban" {print $1}'; }

fleet() { bin/ratelimit fleet --database-file "$dir/database" --live-within "$live"; }

# living prints the names of the live nodes of a fleet.
living() { awk '/ yes / {print $1}'; }

# reported reports whether one node is live, another one than the first, and enforces the newest version.
reported() {
	local now
	now=$(fleet)
	grep -Eq '1 of 1 live node( |$)' <<<"$now" && [ "$(living <<<"$now")" != "$first" ]
}

start_servers
start_gateway
printf 'gateway %s   redis %s   postgres %s\n' "$url" "$dir/redis.sock" "$dir/postgres"
for step in from_deck override ban by_rest away cold again; do
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
