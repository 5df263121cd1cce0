// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ranks that divide the sequences of a model, alone or together with its
// layers.

#include "tessera/runtime/comm/parallel_groups.h"
#include "tessera/runtime/comm/ring_channels.h"
#include "tessera/zoo/layers/layer_context.h"

namespace tessera::zoo {

/// How sequences are divided.
struct Way {
  ContextKind kind = ContextKind::kUlysses;
  ContextLayout layout = ContextLayout::kContiguous;
};

inline constexpr Way kWays[] = {
    {ContextKind::kUlysses, ContextLayout::kContiguous},
    {ContextKind::kUlysses, ContextLayout::kZigzag},
    {ContextKind::kRing, ContextLayout::kContiguous},
    {ContextKind::kRing, ContextLayout::kZigzag}};

/// The ranks of a test: world / tensor context-parallel ones.
class ContextRanks {
 public:
  ContextRanks(World& world, int tensor)
      : groups_(
            world,
            ParallelMesh(
                {.shard = 1,
                 .tensor = tensor,
                 .context = world.size() / tensor},
                world.size(),
                world.size()),
            torch::Device(torch::kCPU)),
        ring_(
            world,
            "context",
            groups_.mesh().ranks(ParallelGroup::kContext, world.rank()),
            at::kCPU) {
    if (tensor > 1) {
      tensor_ = &groups_[ParallelGroup::kTensor];
    }
  }

  Communicator& context() {
    return groups_[ParallelGroup::kContext];
  }
  Communicator* tensor() {
    return tensor_;
  }

  LayerContext layers(const Way& way, bool sequence = false) {
    const LayerContext plain =
        tensor_ == nullptr ? LayerContext()
                           : LayerContext(TensorParallel{tensor_, sequence});
    return plain.over_context({&context(), way.kind, way.layout, &ring_});
  }

 private:
  ParallelGroups groups_;
  runtime::RingChannels ring_;
  Communicator* tensor_ = nullptr;
};

} // namespace tessera::zoo
