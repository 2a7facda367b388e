# shellcheck shell=bash
# The demo's network: namespaces of its own, joined by veth pairs. Sourced after common.sh; LAB must be set.
#
#   client ── to-client [lb] to-b1 ── b1        each name is a namespace, $LAB-<name>;
#                            to-b2 ── b2        the ends in client and backends are called eth0
#                            to-b3 ── b3
#
# The namespace lb is the router between all of them, and where tidegate runs.

BACKENDS=(b1 b2 b3)

# Addresses of services by mode: 203.0.113.<n> and 2001:db8:5e::<n>.
declare -A SERVICE_NUMBER=([nat]=10 [dsr]=11 [ipip]=12)
# shellcheck disable=SC2034 # used by those that source this file
MODES=(nat dsr ipip)

service_address() { # mode family
	case $2 in
	4) printf '203.0.113.%d' "${SERVICE_NUMBER[$1]}" ;;
	6) printf '2001:db8:5e::%d' "${SERVICE_NUMBER[$1]}" ;;
	esac
}

backend_address() { # backend family
	local number=${1#b}
	case $2 in
	4) printf '198.51.100.%d' "$((16 * number + 2))" ;;
	6) printf '2001:db8:b%d::2' "$number" ;;
	esac
}

# The address of the lb namespace on the link to a backend.
gateway_address() { # backend family
	local number=${1#b}
	case $2 in
	4) printf '198.51.100.%d' "$((16 * number + 1))" ;;
	6) printf '2001:db8:b%d::1' "$number" ;;
	esac
}

# Runs a command in a namespace. Not `ip netns exec`: that mounts /sys anew, and the BPF file system is gone from it.
in_namespace() { # name command...
	local name=$1
	shift
	nsenter --net="/run/netns/$LAB-$name" "$@"
}

# The same, in place of this shell: for what goes on in the background under its own process ID.
exec_in_namespace() { # name command...
	local name=$1
	shift
	exec nsenter --net="/run/netns/$LAB-$name" "$@"
}

ip_in() { # name arguments of ip...
	local name=$1
	shift
	ip -netns "$LAB-$name" "$@"
}

make_namespace() { # name
	ip netns add "$LAB-$1"
	ip_in "$1" link set lo up
	# For the interfaces to come: no waiting for duplicate address detection, and no reverse path filter, since replies
	# that carry a service's address come in where no route leads back to it.
	in_namespace "$1" sysctl --quiet --write \
		net.ipv6.conf.default.accept_dad=0 net.ipv6.conf.all.disable_ipv6=0 net.ipv6.conf.default.disable_ipv6=0 \
		net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
}

# Joins lb's interface to-<name> and eth0 in <name>.
make_link() { # name lb-address4/length address4/length lb-address6/length address6/length
	local name=$1 here=to-$1
	ip_in lb link add "$here" type veth peer name eth0 netns "$LAB-$name"
	ip_in lb address add "$2" dev "$here"
	ip_in "$name" address add "$3" dev eth0
	ip_in lb address add "$4" dev "$here" nodad
	ip_in "$name" address add "$5" dev eth0 nodad
	ip_in lb link set "$here" up
	ip_in "$name" link set eth0 up
	ip_in "$name" -4 route add default via "${2%/*}"
	ip_in "$name" -6 route add default via "${4%/*}"
	offloads_off lb "$here"
	offloads_off "$name" eth0
}

# With offloads, veth passes on packets whose checksum is not yet computed and frames larger than the MTU. A network
# card would finish them; XDP sends them as they are.
offloads_off() { # namespace interface
	in_namespace "$1" ethtool --features "$2" tx off rx off gso off tso off gro off >/dev/null 2>&1 || true
}

# Backends answer for the addresses of the modes that leave the packet's destination as it is.
own_service_addresses() { # backend
	local mode
	in_namespace "$1" sysctl --quiet --write net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2
	for mode in dsr ipip; do
		ip_in "$1" address add "$(service_address "$mode" 4)/32" dev lo
		ip_in "$1" address add "$(service_address "$mode" 6)/128" dev lo nodad
	done
}

make_lab() {
	local name
	for name in client lb "${BACKENDS[@]}"; do
		make_namespace "$name"
	done
	in_namespace lb sysctl --quiet --write net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
	make_link client 192.0.2.1/24 192.0.2.2/24 2001:db8:c::1/64 2001:db8:c::2/64
	for name in "${BACKENDS[@]}"; do
		make_link "$name" "$(gateway_address "$name" 4)/28" "$(backend_address "$name" 4)/28" \
			"$(gateway_address "$name" 6)/64" "$(backend_address "$name" 6)/64"
		own_service_addresses "$name"
	done
}

# Ends what runs in the lab's namespaces and removes them, and the interfaces with them. Nothing but the demo and what
# was started in its namespaces by hand is in there.
remove_lab() {
	local name
	for name in client "${BACKENDS[@]}" lb; do
		if [[ -e /run/netns/$LAB-$name ]]; then
			end_processes_in "$LAB-$name"
			ip netns delete "$LAB-$name"
		fi
	done
}

end_processes_in() { # namespace
	local signal attempt pids
	for signal in TERM KILL; do
		for ((attempt = 0; attempt < 50; attempt++)); do
			mapfile -t pids < <(ip netns pids "$1")
			[[ ${#pids[@]} -gt 0 ]] || return 0
			kill "-$signal" "${pids[@]}" 2>/dev/null || true
			sleep 0.1
		done
	done
	warn "could not end the processes ${pids[*]} in $1"
}

# A real nginx in a backend's namespace; it answers with the backend's name. In the foreground, as a child of this
# script: so it is reaped where process 1 does not do that (in containers).
start_nginx() { # backend folder
	local folder=$2/$1
	mkdir -p "$folder"
	cat >"$folder/nginx.conf" <<-CONF
		daemon off;
		user nobody nogroup;
		worker_processes 1;
		pid $folder/nginx.pid;
		error_log $folder/error.log;
		events { worker_connections 1024; }
		http {
			access_log off;
			client_body_temp_path $folder/body;
			proxy_temp_path $folder/proxy;
			fastcgi_temp_path $folder/fastcgi;
			uwsgi_temp_path $folder/uwsgi;
			scgi_temp_path $folder/scgi;
			server {
				listen 0.0.0.0:80;
				listen [::]:80;
				default_type text/plain;
				location / { return 200 "$1\n"; }
				location = /large { alias $folder/large; limit_rate $LARGE_RATE; }
			}
		}
	CONF
	# For a download that takes long enough to see the daemon die and come back.
	truncate --size="$LARGE_BYTES" "$folder/large"
	exec_in_namespace "$1" setsid nginx -e "$folder/error.log" -p "$folder" -c "$folder/nginx.conf" \
		</dev/null >/dev/null 2>&1 &
	# Its end is no news that the shell should print.
	disown $!
}

# Ends a backend's nginx at once, as a crash would.
kill_nginx() { # backend
	local pids
	mapfile -t pids < <(ip netns pids "$LAB-$1")
	kill -KILL "${pids[@]}"
}
