/* SPDX-License-Identifier: GPL-2.0-only */
/* Brings the enumerations of the contract into the BTF, and so into the generated Rust types. Nothing reads it. */
#ifndef TIDEGATE_CONTRACT_H
#define TIDEGATE_CONTRACT_H

#include <tidegate/ledger.h>
#include <tidegate/records.h>

struct contract {
	enum layout layout;
	enum address_family address_family;
	enum forward_mode forward_mode;
	enum no_backend_action no_backend_action;
	enum hash_mode hash_mode;
	enum backend_state backend_state;
	enum backend_flags backend_flags;
	enum flow_kind flow_kind;
	enum flow_time flow_time;
	enum table_shape table_shape;
	enum node_flags node_flags;
	enum ledger_reason ledger_reason;
	enum ledger_class ledger_class;
	enum ledger_hook ledger_hook;
};

const volatile struct contract contract = {};

#endif /* TIDEGATE_CONTRACT_H */
