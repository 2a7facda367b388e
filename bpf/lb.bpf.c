/* SPDX-License-Identifier: GPL-2.0-only */
#include <vmlinux.h>
#include <bpf/bpf_helpers.h>

SEC("xdp")
int xdp_lb(struct xdp_md *ctx __attribute__((unused)))
{
	return XDP_PASS;
}

char LICENSE[] SEC("license") = "GPL";
