# shellcheck shell=bash
# Functions that several scripts share. Sourced, never run.

# The repository. Scripts work from there, wherever they were called from.
# shellcheck disable=SC2034 # used by those that source this file
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

say() { printf '%s\n' "$*"; }

warn() { printf 'warning: %s\n' "$*" >&2; }

# Ends the script with a message.
die() {
	printf 'error: %s\n' "$*" >&2
	exit 1
}

# A heading; bold on a terminal.
heading() {
	if [[ -t 1 ]]; then
		printf '\n\033[1m== %s\033[0m\n' "$*"
	else
		printf '\n== %s\n' "$*"
	fi
}

is_root() { [[ $EUID -eq 0 ]]; }

# Sudo for this call: it may ask for a password only where somebody can answer.
sudo_command() {
	if [[ -t 0 && -z ${CI:-} ]]; then
		printf 'sudo'
	else
		printf 'sudo --non-interactive'
	fi
}

# Runs a command as root, through sudo where this is not root.
as_root() {
	local sudo
	if is_root; then
		"$@"
	elif command -v sudo >/dev/null; then
		read -ra sudo <<<"$(sudo_command)"
		"${sudo[@]}" "$@"
	else
		die "this needs root and there is no sudo; run as root: $*"
	fi
}

# The pins live in the BPF file system. systemd mounts it at boot; containers and small machines often do not.
mount_bpffs() {
	local magic=cafe4a11
	if [[ $(stat --file-system --format %t /sys/fs/bpf 2>/dev/null) == "$magic" ]]; then
		return
	fi
	say "The BPF file system is not mounted; mounting it on /sys/fs/bpf."
	as_root mount -t bpf bpf /sys/fs/bpf ||
		die "cannot mount the BPF file system on /sys/fs/bpf: is this a container without the right to, or a kernel without CONFIG_BPF_SYSCALL?"
}
