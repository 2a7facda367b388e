# shellcheck shell=bash
# Finding and installing a Rust toolchain. Sourced after common.sh.

# The oldest Rust that builds this crate, from Cargo.toml.
rust_needed() { sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$ROOT/Cargo.toml"; }

# True where version $1 is at least version $2.
at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort --version-sort | head -n 1) == "$2" ]]; }

home_of() { getent passwd "$1" | cut -d: -f6; }

# Puts the usual places of cargo on PATH. Under sudo the toolchain is often in the home of who called it: it is used
# from there, but whatever cargo writes goes to root's own home, so that no file of root's is left in the other.
use_cargo() {
	local caller bin
	for bin in "${CARGO_HOME:-$HOME/.cargo}/bin" "$HOME/.cargo/bin"; do
		if command -v cargo >/dev/null; then
			return
		fi
		PATH=$bin:$PATH
	done
	if ! command -v cargo >/dev/null && is_root && [[ -n ${SUDO_USER:-} ]]; then
		caller=$(home_of "$SUDO_USER")
		if [[ -x $caller/.cargo/bin/cargo ]]; then
			PATH=$caller/.cargo/bin:$PATH
			export RUSTUP_HOME=${RUSTUP_HOME:-$caller/.rustup}
		fi
	fi
	export PATH
}

# The version of the cargo on PATH; nothing where there is none or it does not work.
cargo_version() { cargo --version 2>/dev/null | cut -d' ' -f2; }

cargo_is_good() {
	local version
	version=$(cargo_version)
	[[ -n $version ]] && at_least "$version" "$(rust_needed)"
}

# Where cargo puts what it builds.
target_directory() {
	(cd "$ROOT" && cargo metadata --format-version 1 --no-deps --locked | jq --raw-output .target_directory)
}
