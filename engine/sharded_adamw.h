// SPDX-License-Identifier: Apache-2.0
#pragma once
// AdamW over the flat shards of a Pager.

#include "tessera/offload/host_adamw.h"
#include "tessera/sharding/pager.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace tessera {

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;
};

/// Updates this rank's shards; state rests on the host. Parameters without a
/// gradient are left alone, as torch::optim::AdamW leaves them.
class ShardedAdamW {
 public:
  /// @throws tessera::Error on options outside their range.
  static void check(const AdamWOptions& options);

  /// @param options checked.
  ShardedAdamW(Pager& pager, const AdamWOptions& options, MemoryLedger& ledger);

  AdamWOptions& options() {
    return options_;
  }
  const AdamWOptions& options() const {
    return options_;
  }

  /// One step with the settled gradients, multiplied by `gradient_factor`. Not
  /// collective.
  void step(double gradient_factor);

  /// Bytes of state that this rank needs.
  static int64_t state_bytes(const Pager& pager);

 private:
  struct GroupState {
    std::unique_ptr<HostAdamW> adamw; ///< null for a frozen group
    std::vector<FlatRun> runs;
    std::vector<int64_t> steps; ///< per parameter
    /// Every element of the shard belongs to a trainable parameter or is
    /// padding, so that one call may cover them all.
    bool seamless = false;
    uint64_t write_backs = 0; ///< of the group, when the master was loaded
  };

  GroupState make_state(size_t group, MemoryLedger& ledger) const;
  void step_group(size_t group, double gradient_factor);

  Pager& pager_;
  AdamWOptions options_;
  std::vector<GroupState> groups_;
};

} // namespace tessera
