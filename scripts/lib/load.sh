# shellcheck shell=bash
# Requests as a client makes them. Sourced after lab.sh. What is called in the client's namespace is handed there as
# text (declare -f), so these functions use nothing but their arguments.

# One request on a connection of its own; prints the answer, the name of a backend.
fetch() { # url
	curl --disable --silent --show-error --fail --globoff --noproxy '*' --max-time 2 "$1"
}

# Requests to each URL in turn until the file $1 exists, at most $2 of them. Each is a line of the output: `ok` or
# `failed`, the seconds it took to connect, and the URL. A lost SYN is sent again after one second: it shows.
request_loop() { # stop-file limit url...
	local stop=$1 left=$2 url answer verdict connect
	shift 2
	while [[ ! -e $stop && $left -gt 0 ]]; do
		for url in "$@"; do
			verdict=ok
			answer=$(curl --disable --silent --fail --globoff --noproxy '*' --max-time 2 --retry 0 \
				--write-out '%{time_connect}' "$url") || verdict=failed
			connect=${answer##*$'\n'}
			[[ ${answer%%$'\n'*} == b[1-3] ]] || verdict=failed
			printf '%s %s %s\n' "$verdict" "$connect" "$url"
			left=$((left - 1))
		done
	done
}

in_client() { # function argument...
	in_namespace client bash -c "$(declare -f fetch request_loop); \"\$@\"" bash "$@"
}

url_of() { # address
	case $1 in
	*:*) printf 'http://[%s]/' "$1" ;;
	*) printf 'http://%s/' "$1" ;;
	esac
}

service_url() { url_of "$(service_address "$1" "$2")"; } # mode family

backend_url() { url_of "$(backend_address "$1" "$2")"; } # backend family

answers() { in_client fetch "$1" >/dev/null 2>&1; } # url

all_urls() {
	local mode family
	for mode in "${MODES[@]}"; do
		for family in 4 6; do
			service_url "$mode" "$family"
			printf '\n'
		done
	done
}

# Makes requests one after the other and prints the answers; fails where one of them failed.
fetch_many() { # times url...
	local times=$1
	shift
	in_namespace client bash -c "$(declare -f fetch)
		times=\$1; shift
		for ((i = 0; i < times; i++)); do
			for url in \"\$@\"; do fetch \"\$url\" || exit 1; done
		done" bash "$times" "$@"
}

# From names, one a line, to `b1 10  b2 11  b3 9`.
spread() { sort | uniq --count | awk '{ printf "%s%s %d", (NR > 1 ? "  " : ""), $2, $1 } END { print "" }'; }

# Calls a command until it succeeds, at most so many seconds.
wait_until() { # what seconds command...
	local what=$1 deadline=$((SECONDS + $2))
	shift 2
	until "$@"; do
		if ((SECONDS >= deadline)); then
			die "waited in vain for this: $what"
		fi
		sleep 0.05
	done
}
