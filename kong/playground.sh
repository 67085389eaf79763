#!/usr/bin/env bash
# Starts a Redis, a Postgres with the tables and no rows, and a gateway with the plugin, to follow the docs with.
# playground.sh up returns when they serve, playground.sh down ends them and deletes their data.
#
# Run by make playground, from the top folder, with the programs in bin/. LISTEN is the gateway's address,
# METRICS_LISTEN the address of the plugin's metrics; bin/playground.env has them for a shell.
set -euo pipefail

file=bin/playground.env

up() {
	if ! running; then
		rm -f "$file"
		setsid "$0" serve >bin/playground.log 2>&1 </dev/null &
		until [ -e "$file" ]; do
			kill -0 $! 2>/dev/null || { cat bin/playground.log >&2 && return 1; }
			sleep 0.1
		done
	fi
	printf 'the playground is up\n'
}

down() {
	! running || kill "$(sed -n 's/^# kept by process //p' "$file")"
	while running; do sleep 0.1; done
	rm -f "$file"
}

# running reports whether the process that keeps the servers is alive and has not cleaned up yet.
running() {
	[ -e "$file" ] && kill -0 "$(sed -n 's/^# kept by process //p' "$file")" 2>/dev/null && (. "$file" && [ -e "$CONFIG" ])
}

serve() {
	# shellcheck source=kong/servers.sh
	. kong/servers.sh
	start_servers
	start_gateway
	cat >"$dir/env" <<-END
		# kept by process $$
		export RATELIMIT_DATABASE='$(cat "$dir/database")'
		export CONFIG='$dir/kong.yml' # kong/kong.yml with this Redis
		export KONG='$url'
		export NODE='$METRICS_LISTEN'
	END
	mv "$dir/env" "$file"
	wait "$gateway"
}

export METRICS_LISTEN=${METRICS_LISTEN:-127.0.0.1:9542}
"$1"
