// SPDX-License-Identifier: Apache-2.0
#pragma once
// `UpdateSite` is where and in which types a page is updated, and what of it
// passes through host memory for that: known before the page has memory.

#include "tessera/runtime/memory/shard_tiers.h"

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>

namespace tessera::offload {

/// The types of the tensors of an update.
struct UpdateTypes {
  UpdateTypes() = default;
  /// @param weights in which operators use them; float16 and bfloat16 are
  ///   updated in float32, others as they are.
  /// @param gradients in which they are reduced.
  /// @param moments nothing: the type of the master.
  UpdateTypes(
      at::ScalarType weights,
      at::ScalarType gradients,
      std::optional<at::ScalarType> moments);

  /// Whether updates write rounded weights in addition to the master.
  bool rounds() const {
    return weight != master;
  }
  /// The type in which an update takes gradients of type `reduced`: as they
  /// are, or in the master's.
  at::ScalarType gradient_from(at::ScalarType reduced) const;

  at::ScalarType weight = at::kFloat;
  at::ScalarType master = at::kFloat;
  at::ScalarType gradient = at::kFloat;
  at::ScalarType moment = at::kFloat; ///< of state with a value per element
};

/// One rank's shard of a page, as far as its updates depend on it.
struct UpdatedShard {
  std::string page; ///< its name
  c10::Device device = at::kCPU; ///< of the parameters
  int64_t numel = 0;
  UpdateTypes types;
  bool has_separate_master = false; ///< master weights beside the shard
};

class UpdateSite {
 public:
  /// @param tiers on which the page's shards rest.
  /// @param streams whether state that does not rest on the device of the
  ///   parameters is updated there all the same, else by the CPU.
  /// @throws tessera::Error if the weights are not floating-point.
  UpdateSite(
      UpdatedShard shard,
      const runtime::ShardTiers& tiers,
      bool streams);

  const UpdatedShard& shard() const {
    return shard_;
  }
  const UpdateTypes& types() const {
    return shard_.types;
  }
  const runtime::ShardTiers& tiers() const {
    return tiers_;
  }
  bool streams() const {
    return streams_;
  }
  /// Whether master weights are streamed with the state: updates get them as
  /// they rest.
  bool streams_master() const {
    return streams_ && shard_.has_separate_master;
  }
  /// The device on which updates run.
  c10::Device device() const {
    return device_;
  }
  /// The bytes that the shards of weights, gradients and master weights take of
  /// a buffer of StagingBuffers.
  int64_t staging_bytes() const;

 private:
  UpdatedShard shard_;
  runtime::ShardTiers tiers_;
  bool streams_;
  c10::Device device_;
};

} // namespace tessera::offload
