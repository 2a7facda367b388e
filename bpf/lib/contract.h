/* SPDX-License-Identifier: GPL-2.0-only */
/* Brings the enumerations of the contract, and the records of inner maps, into the BTF, and so into the generated Rust types. Nothing reads it. */
#ifndef TIDEGATE_CONTRACT_H
#define TIDEGATE_CONTRACT_H

#include <tidegate/ledger.h>
#include <tidegate/records.h>

struct contract {
	enum layout layout;
	enum address_family address_family;
	enum forward_mode forward_mode;
	enum hash_mode hash_mode;
	enum no_backend_action no_backend_action;
	enum backend_state backend_state;
	enum backend_flags backend_flags;
	enum flow_kind flow_kind;
	enum flow_time flow_time;
	enum table_shape table_shape;
	enum node_flags node_flags;
	enum ledger_reason ledger_reason;
	enum ledger_class ledger_class;
	enum ledger_hook ledger_hook;
	enum address_policy address_policy;
	enum service_ids service_ids;
	enum admission_checks admission_checks;
	enum limit_kind limit_kind;
	enum limit_time limit_time;
	enum source_limit_shape source_limit_shape;
	enum source_verdict source_verdict;
	struct source_key_v4 source_key_v4;
	struct source_key_v6 source_key_v6;
	struct source_rule source_rule;
};

const volatile struct contract contract = {};

#endif /* TIDEGATE_CONTRACT_H */
