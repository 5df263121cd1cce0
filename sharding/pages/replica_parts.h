// SPDX-License-Identifier: Apache-2.0
#pragma once
// `replica_part_numel()` divides a shard among its replicas, for sums that are
// sent in another format.

#include "tessera/sharding/pages/page_spec.h"

#include <cstdint>

namespace tessera::sharding {

/// Elements of a shard that each replica adds up and sends, where they send
/// PageSpec::reduce_format; 0: there are no replicas, or the shard is too
/// small.
int64_t replica_part_numel(const PageSpec& page);

} // namespace tessera::sharding
